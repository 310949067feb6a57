# The two commands: `make demo` and `make check`. Each installs what is missing
# (as root, or says what to type), builds, and runs. `make help` lists the rest.

BUILD ?= build
JOBS ?= $(shell nproc)
VENV := $(BUILD)/venv
PYTHON := $(abspath $(VENV))/bin/python
CMAKE_FLAGS ?=

.PHONY: help all demo check check-full clean packages

help:
	@echo "make demo    compile a real graph and checkpoint, run it, and verify it"
	@echo "make check   build everything and run all tests"
	@echo "make check-full  the same with the slow sweeps"
	@echo "make all     build only (folder: BUILD=$(BUILD), jobs: JOBS=$(JOBS))"
	@echo "make clean   remove $(BUILD)"

packages:
	@utils/install-packages.sh

# Python for the demo; the tests add triton.
$(VENV)/demo.stamp: utils/requirements.txt | packages
	@python3 -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r utils/requirements.txt
	@touch $@

$(VENV)/test.stamp: test/requirements.txt $(VENV)/demo.stamp
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -r test/requirements.txt
	@touch $@

$(BUILD)/build.ninja: CMakeLists.txt | packages
	cmake -G Ninja -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release \
	  -DCMAKE_C_COMPILER=clang-22 -DCMAKE_CXX_COMPILER=clang++-22 \
	  -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld \
	  -DCMAKE_MODULE_LINKER_FLAGS=-fuse-ld=lld \
	  -DKVCACHE_TEST_PYTHON=$(PYTHON) $(CMAKE_FLAGS)

all: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)

demo: $(BUILD)/build.ninja $(VENV)/demo.stamp
	cmake --build $(BUILD) -j $(JOBS) --target kvcache-compile kvcache-run KVCacheHost kvcache-kernels
	@$(PYTHON) utils/demo.py --build $(BUILD)

# A folder that was configured by hand may name another Python.
check: $(BUILD)/build.ninja $(VENV)/test.stamp
	@cmake -DKVCACHE_TEST_PYTHON=$(PYTHON) $(BUILD) >/dev/null
	cmake --build $(BUILD) -j $(JOBS) --target check-depends
	cmake --build $(BUILD) --target check

# lit reads LIT_OPTS from the environment.
check-full: export LIT_OPTS += -Dslow
check-full: check

clean:
	rm -rf $(BUILD)
