# `make` or `make help` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help demo tools test test-crates test-rust test-python test-interpreters test-helm test-torch wheel deb test-otlp bless look look-page look-snapshot bench bench-client bench-snapshot eval deadline truth eval-toys soak cluster fleet ends attack fuzz release lint fmt clippy spelling deny types workflows docs rust debian
SHELL := /bin/bash
CARGO ?= cargo
# What the tests and lints need in addition to Rust and Python is installed here, and nowhere else.
TOOLS := target/tools

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r target what; do \
		printf '%s\n' "$$what" | fold -s -w 60 | sed -e "1s/^/$$(printf '%-19s ' "$$target")/" -e '2,$$s/^/                    /' -e 's/ *$$//'; done

demo: ## Run the exporter with a simulated job of 8 ranks; one leaks
	$(CARGO) run --release -- demo

tools: ## Install what the tests need, by pinned version
	@tests/peers/install.sh
	@tests/ops/install.sh

test: ## Run every test: print first what it installs, and last what failed
	@CARGO="$(CARGO)" tests/run.sh

test-crates: ## Test the libraries in crates/ alone, with their examples: the inner loop (under a minute after a change)
	@$(CARGO) test --quiet $(addprefix --package stepmem-,$(notdir $(patsubst %/,%,$(wildcard crates/*/))))

test-rust: ## Run every test in Rust, those of the program too
	@CARGO="$(CARGO)" tests/run.sh rust

test-python: ## Test the Python client against the exporter (a minute)
	@python/tests/install.sh
	@$(CARGO) build --quiet
	@cd python && ../$(TOOLS)/python-venv/bin/python -m pytest -n 4 -p no:cacheprovider -m "not torch"

test-interpreters: ## Run every Python of this machine, from 3.9 on, below `stepmem run` and with the bare client
	@python/tests/install.sh
	@$(CARGO) build --quiet
	@cd python && ../$(TOOLS)/python-venv/bin/python -m pytest -p no:cacheprovider tests/test_interpreters.py

test-helm: ## Render the chart in every mode, and check it against the schemas of Kubernetes
	@tests/ops/install.sh
	@$(CARGO) build --quiet
	@$(TOOLS)/ops/bin/python tests/ops/chart.py target/debug/stepmem

test-torch: ## Test it with the real PyTorch, Transformers, Accelerate, Lightning, TRL and torchrun (installs 6 GB)
	@python/tests/install.sh torch
	@$(CARGO) build --quiet
	@cd python && ../$(TOOLS)/torch-venv/bin/python -m pytest -n 2 -p no:cacheprovider $$(grep -lE 'mark\.torch|needs_torch' tests/test_*.py)

wheel: ## Build the wheel of pip install, for glibc 2.28 and newer, and test it in a fresh environment (a release build; zig from PyPI)
	@python/tests/install.sh
	@python/tests/install.sh wheel
	@wheel=$$(packaging/wheel.sh release $(CURDIR)/target/wheels) && cd python && \
		STEPMEM_WHEEL=$$wheel ../$(TOOLS)/python-venv/bin/python -m pytest -p no:cacheprovider tests/test_wheel.py && \
		echo "$$wheel"

deb: ## Build the Debian package, with a systemd unit (a release build; cargo-deb from crates.io)
	@packaging/deb.sh

test-otlp: ## Test rules and a fleet over OTLP with the real Prometheus 3 and Collector (minutes; builds both from Go modules, 5 minutes once)
	@tests/peers/install.sh otlp
	@tests/ops/install.sh
	@$(CARGO) build --quiet
	@$(CARGO) test --quiet --test it -- peers::otlp_stack ops:: --ignored

bless: ## Write the generated documents and recorded answers again
	STEPMEM_BLESS=1 $(CARGO) test --quiet --test it generated::the_page
	dashboards/build.py
	STEPMEM_BLESS=1 $(CARGO) test --quiet --test it

look: LOOK_PROFILE ?= dist
look: ## Draw the dashboards of a demo into docs/ (four minutes; half a GB from npm; LOOK_PROFILE=release builds sooner)
	@tests/peers/install.sh
	$(CARGO) build --quiet --profile $(LOOK_PROFILE)
	$(CARGO) build --quiet --profile $(LOOK_PROFILE) --package fake-nvml
	tests/ops/look/look.sh target/look target/$(LOOK_PROFILE)
	for each in run rank fleet exporter; do cp target/look/stepmem-$$each.png docs/dashboard-$$each.png; done

look-page: ## Draw the page of a demo into docs/, and record what its tests read (four minutes)
	@tests/peers/install.sh
	@tests/ops/install.sh
	$(CARGO) build --quiet
	node tests/ops/draw_page.mjs target/debug/stepmem docs/page tests/data/page
	cp docs/page/demo-100s-1280-light.png docs/page.png

look-snapshot: ## Draw documents of memory snapshots into docs/ (a minute)
	@tests/ops/install.sh
	$(CARGO) build --quiet
	for each in before_after:light oom_fragmentation.oom:dark; do \
		name=$${each%:*}; \
		target/debug/stepmem snapshot show tests/data/snapshots/vectors/$$name.pickle.gz --html target/$$name.html && \
		node tests/ops/draw_snapshot.mjs target/$$name.html docs/snapshot-$${name%.oom}.png $${each#*:} 1250; \
	done
	cd tests/data/snapshots/vectors && ../../../../target/debug/stepmem snapshot diff before_after.step10.pickle.gz before_after.pickle.gz --html ../../../../target/diff.html
	cd tests/data/snapshots/vectors && ../../../../target/debug/stepmem snapshot ranks ranks_leak.rank?.pickle.gz --html ../../../../target/ranks.html
	node tests/ops/draw_snapshot.mjs target/diff.html docs/snapshot-diff.png light 730
	node tests/ops/draw_snapshot.mjs target/ranks.html docs/snapshot-ranks.png dark 610

bench: ## Measure: benchmarks of the parts, then the load next to Pushgateway and node-exporter, then summaries and the page
	@tests/peers/install.sh bench
	@tests/ops/install.sh
	$(CARGO) bench --quiet --bench parts
	$(CARGO) build --quiet --profile dist
	$(CARGO) build --quiet --profile dist --package fake-nvml
	$(CARGO) build --quiet --profile dist --example bare-hyper
	python3 benches/load target/dist/stepmem --bare-hyper target/dist/examples/bare-hyper --fake-nvml target/dist/libfake_nvml.so
	python3 benches/push_pair.py target/dist/stepmem
	python3 benches/summary.py target/dist/stepmem
	node benches/page.mjs target/dist/stepmem

bench-client: ## Measure what the Python client costs a training thread, next to TraceML (installs 6 GB)
	@python/tests/install.sh torch
	$(CARGO) build --quiet --profile dist
	python3 benches/client.py target/dist/stepmem --python $(TOOLS)/torch-venv/bin/python
	$(TOOLS)/torch-venv/bin/python benches/holders.py
	python3 benches/recording.py
	python3 benches/calls.py
	python3 benches/run.py target/dist/stepmem
	python3 benches/step.py target/dist/stepmem

bench-snapshot: ## Measure the snapshot reader next to pickle.load and other programs on the same files (minutes, 4 GB of memory)
	$(CARGO) build --quiet --profile dist
	@test -x $(TOOLS)/snapshot-venv/bin/ptmem || { python3 -m venv $(TOOLS)/snapshot-venv && \
		$(TOOLS)/snapshot-venv/bin/pip install --quiet ptmem==0.1.2 pt-snap-cli==0.4.1; }
	python3 benches/snapshot.py target/dist/stepmem --peers $(TOOLS)/snapshot-venv --torch $(TOOLS)/torch-venv

eval: ## Score the detector on jobs of known truth, each figure next to its limit (half an hour at first, then minutes; SETS=dev SEEDS=0-4 FAMILIES=…)
	@CARGO="$(CARGO)" eval/run.sh $(if $(SETS),--sets $(SETS)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FAMILIES),--families $(FAMILIES)) $(EVAL_OPTIONS)

deadline: ## Score the ask to checkpoint on simulated jobs: fatal leaks in time, healthy jobs hardly ever (an hour at first, for the jobs of `make eval`; then minutes)
	@CARGO="$(CARGO)" eval/deadline.sh $(if $(SETS),--sets $(SETS)) $(if $(SEEDS),--seeds $(SEEDS))

truth: ## Judge every statement about 3,000 recordings and 300 programs of known truth (half an hour, installs 6 GB; TRUTH=quick for 96 recordings, SET=test for other seeds)
	@python/tests/install.sh $(if $(filter quick,$(TRUTH)),,torch)
	@$(CARGO) build --quiet --profile dist
	cd eval && python3 -m truth ../target/dist/stepmem --set $(or $(SET),dev) \
		$(if $(filter quick,$(TRUTH)),--quick,--python ../$(TOOLS)/torch-venv/bin/python --write ../docs/truth.md)

eval-toys: ## Run 24 small programs that leak and 12 that do not under `stepmem run`, with the real PyTorch on the CPU (5 minutes; installs 6 GB)
	@python/tests/install.sh torch
	@$(CARGO) build --quiet
	@$(TOOLS)/torch-venv/bin/python eval/toys.py target/debug/stepmem

soak: ## Poll the stand-in for NVML as often as in an hour at 100 Hz, with faults at random (minutes)
	STEPMEM_SOAK_POLLS=360000 $(CARGO) test --test it -- --exact nvml::soak::soak --ignored --nocapture

cluster: tools ## Try the bundle on a real Kubernetes, built from Go modules (needs Go and root; minutes, cold 45)
	@$(CARGO) build --quiet --profile dist
	@$(CARGO) build --quiet --profile dist --package fake-nvml
	@$(TOOLS)/ops/bin/python tests/cluster/run.py target/dist/stepmem target/dist/libfake_nvml.so $(SCENARIOS)

fleet: PODS ?= 1000
fleet: SINCE ?= 427cc712
fleet: ## Scrape a fleet of simulated pods with the real Prometheus, and print what the rules and dashboards read (five minutes; PODS=… SINCE=COMMIT)
	@tests/peers/install.sh
	@tests/ops/install.sh
	$(CARGO) build --quiet --example fleet-pods
	rm -rf target/fleet
	$(TOOLS)/ops/bin/python tests/fleet/run.py target/debug/examples/fleet-pods --pods $(PODS) --seconds 240 --scrape-seconds 15 --since $(SINCE) --work-dir target/fleet $(FLEET_OPTIONS)

ends: ENDS ?= 20
ends: ## Have jobs that leak complete and die under the real Prometheus and Alertmanager, so many of each (three minutes; ENDS=…)
	@tests/peers/install.sh
	@tests/ops/install.sh
	$(CARGO) build --quiet
	rm -rf target/ends
	$(TOOLS)/ops/bin/python tests/ops/ends.py target/debug/stepmem target/ends $(ENDS)

attack: ## Attack the exporter over loopback and write the tables of docs/security.md (ten minutes)
	$(CARGO) build --quiet --profile dist
	python3 tests/attack/run.py --write docs/security.md target/dist/stepmem

fuzz: ## Fuzz every target and the client's handling of answers, a minute each (FUZZ_SECONDS=…)
	fuzz/run.sh $(or $(FUZZ_SECONDS),60)
	@python/tests/install.sh
	cd python && STEPMEM_FUZZ_ANSWERS=$(or $(FUZZ_ANSWERS),100000) STEPMEM_FUZZ_SEED=$$(date +%s) \
		../$(TOOLS)/python-venv/bin/python -m pytest -q -p no:cacheprovider tests/test_trust.py -k "answer"

release: export REPOSITORY := $(REPOSITORY)
release: export DOCUMENTATION := $(DOCUMENTATION)
release: export BUILDER := $(BUILDER)
release: export BASE := $(BASE)
release: ## Put all that is uploaded into target/upload: wheel, deb, client, crates, chart, image recipe, SBOM, checksums (REPOSITORY=URL DOCUMENTATION=URL BUILDER=IMAGE@sha256:… BASE=…)
	@packaging/release/inputs.sh inputs >/dev/null
	packaging/release/pack.sh target/upload

lint: fmt clippy spelling deny types workflows ## Check formats, clippy, American spelling, licenses and advisories of crates, the client's types and the workflows

fmt: ## Check the format of the Rust files
	$(CARGO) fmt --all --check

clippy: ## Run clippy, whose warnings are errors
	$(CARGO) clippy --quiet --all-targets --workspace -- -D warnings

spelling: ## Check that words are spelled as in American English
	@tests/lint/spelling.py

deny: ## Check licenses, sources, advisories and use of the crates that are linked
	@tests/lint/deny.sh

types: ## Check the types of the Python client
	@python/tests/install.sh
	cd python && ../$(TOOLS)/python-venv/bin/python -m mypy --no-error-summary stepmem

workflows: ## Check .github/workflows with actionlint (a Go module)
	@tests/lint/install.sh workflows
	$(TOOLS)/bin/actionlint -shellcheck= -pyflakes=

docs: ## Build the documentation of the crates, and check the links and names in the documents
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --quiet --no-deps --workspace
	@python/tests/install.sh
	@$(CARGO) build --quiet
	@cd python && ../$(TOOLS)/python-venv/bin/python -m pytest -n 4 -p no:cacheprovider tests/test_readme.py

rust: ## Install a Rust toolchain with rustup: RUSTUP_TOOLCHAIN=stable, or the oldest that Cargo.toml promises
	rustup toolchain install --profile minimal --component clippy,rustfmt $(or $(RUSTUP_TOOLCHAIN),stable)

debian: ## Install what the tests need of a bare Debian, as root
	apt-get -qq update && apt-get -qq install -y --no-install-recommends g++ git make python3-venv
