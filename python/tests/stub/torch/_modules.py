"""PyTorch's modules, as far as the client meets them: importing this puts them where PyTorch has its own."""

import sys
import types

module = types.ModuleType("torch.nn.modules.module")


class Module:
    _compiled_call_impl = None

    def _wrapped_call_impl(self, *arguments):
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*arguments)
        return self._call_impl(*arguments)

    def _call_impl(self, *arguments):
        return self.forward(*arguments)

    __call__ = _wrapped_call_impl


module.Module = Module
sys.modules["torch.nn.modules.module"] = module
