"""Starts the stepmem client in the Python processes below `stepmem run`, once they import PyTorch.

Runs the `sitecustomize` that Python would run without it. Valid in every version of Python; in an interpreter that it does
not know, it does nothing else.
"""

import os
import sys

if sys.version_info >= (3, 9):
    # Of the functions below, and of the client's, whatever the program replaces later.
    __builtins__ = dict(__builtins__ if isinstance(__builtins__, dict) else vars(__builtins__))

_mknod, _write = os.mknod, os.write

_OPTIMIZER = "torch.optim.optimizer"

_TRACES = os.environ.get("STEPMEM_TRACES")
_FOLDER = os.path.dirname(os.path.abspath(__file__))

_OTHER_NAME = "_stepmem"
"""The package's name where the program has another stepmem."""


def _defer():
    """Moves this directory to the end of the path, so that everything else wins: an installed stepmem, another sitecustomize."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    own = sys.modules.pop(__name__, None)
    try:
        # Exceptions are Python's to report, as without this file.
        _run_next()
    finally:
        if __name__ not in sys.modules and own is not None:
            sys.modules[__name__] = own
        if _FOLDER not in sys.path:
            sys.path.append(_FOLDER)


def _run_next():
    try:
        __import__(__name__)
    except ImportError:
        error = sys.exc_info()[1]
        missing = getattr(error, "name", None) or str(error).replace("No module named ", "").strip("'")
        if missing != __name__:
            raise


def _is_known():
    implementation = getattr(sys, "implementation", None)
    return sys.version_info >= (3, 9) and getattr(implementation, "name", "") == "cpython"


def _leave_trace(name):
    """Lets `stepmem run` report what it could watch, if no step comes."""
    if _TRACES:
        try:
            _mknod(_TRACES + "/" + name, 0o600)  # opens no descriptor, which the program might close
        except OSError:
            pass


_CAPTURED = ("os", "time")
"""Modules of which a program may replace functions before it imports PyTorch."""


class _Start(object):
    """An import finder that starts the client right after PyTorch's optimizers are imported. Finds no module itself.

    It stays in `sys.meta_path`: while another thread goes through that list, to remove an entry would hide the next one from it.
    """

    def __init__(self):
        self._is_done = False
        self.stepmem_began = {
            "builtins": __builtins__,
            "modules": {name: dict(vars(sys.modules[name])) for name in _CAPTURED if name in sys.modules},
            "folders": [os.path.dirname(os.__file__)] + [entry for entry in sys.path if entry.endswith("lib-dynload")],
        }
        """The interpreter before the program begins, for `_isolation.py`."""

    def find_spec(self, name, path=None, target=None):
        if name != _OPTIMIZER or self._is_done:
            return None
        self._is_done = True
        spec = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is not self and find is not None:
                spec = find(name, path, target)
                if spec is not None:
                    break
        try:
            self._wrap(spec)
        except Exception:
            pass
        return spec

    def _wrap(self, spec):
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            _start()

        loader.exec_module = exec_module


def _start():
    _leave_trace("torch")
    try:
        _client().auto()
    except Exception:
        _complain("stepmem: this process is not watched: %r\n" % (sys.exc_info()[1],))


def _client():
    """Returns the module that counts steps: that of an installed stepmem, or else of the one next to this file.

    A script or package of the program may have the name `stepmem`. It is not imported: that would run it a second time.
    """
    # The program may have modules of its own that `importlib` needs, and finders that tell what is looked for.
    from _frozen_importlib_external import PathFinder, spec_from_file_location

    try:
        loaded = sys.modules.get("stepmem")
        spec = PathFinder.find_spec("stepmem") if loaded is None else loaded.__spec__
        places = spec.submodule_search_locations
        if places and all(PathFinder.find_spec("stepmem." + name, places) for name in ("_auto", "_client")):
            return _load(spec) if loaded is None else __import__("stepmem._auto", fromlist=["auto"])
    except (AttributeError, ImportError, TypeError, ValueError):
        pass
    if _OTHER_NAME not in sys.modules:
        folder = os.path.join(_FOLDER, "stepmem")
        _load(spec_from_file_location(_OTHER_NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]))
    return sys.modules[_OTHER_NAME + "._auto"]


def _load(spec):
    """Imports the package of the client, and returns its module that counts steps."""
    from _frozen_importlib import _load as load
    from _frozen_importlib_external import PathFinder

    # First the module that imports the others without the program's finders.
    first = PathFinder.find_spec(spec.name + "._isolation", spec.submodule_search_locations)
    try:
        for each in (first, spec):
            if each is not None:
                # With Python's lock for the module, so that other threads that import it wait.
                load(each)
        return sys.modules[spec.name + "._auto"]
    except BaseException:
        sys.modules.pop(spec.name + "._isolation", None)
        raise


def _complain(text):
    """Writes to standard error, past Python's buffers: what stays in them makes Python exit with 120."""
    try:
        _write(sys.stderr.fileno(), text.encode("utf-8", "backslashreplace"))
    except Exception:
        pass


_defer()
_leave_trace("python" if _is_known() else "other")
if _is_known():
    sys.meta_path.insert(0, _Start())
