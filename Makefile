# Builds, installs and tests librdma_verbs. `make help` lists what there is to make.

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
SOVERSION := 1

# cargo and the compilers run in parallel by themselves; what needs packages must not start before they are installed.
.NOTPARALLEL:

# Where `make install` puts things (GNU coding standards, "Variables for Installation Directories").
prefix = /usr/local
exec_prefix = $(prefix)
bindir = $(exec_prefix)/bin
libdir = $(exec_prefix)/lib
includedir = $(prefix)/include
mandir = $(prefix)/share/man
pkgconfigdir = $(libdir)/pkgconfig
# librdmacm-dev has pages of these names in /usr: there ours stand beside them (`man 3rdma_verbs NAME`).
man3ext = $(if $(filter /usr,$(prefix)),.3rdma_verbs,.3)
INSTALL = install
INSTALL_PROGRAM = $(INSTALL)
INSTALL_DATA = $(INSTALL) -p -m 644

CARGO = cargo
CC = cc
OBJCOPY = objcopy
# Most of the debugging information is that of Rust's standard library. Packagers who set this keep it.
LDFLAGS = -Wl,--strip-debug

# All output goes here.
T := target
DIST := $T/dist
SONAME := librdma_verbs.so.$(SOVERSION)
SO := $(DIST)/librdma_verbs.so.$(VERSION)
A := $(DIST)/librdma_verbs.a
PRELOAD := $(DIST)/rdma_verbs/librdma_verbs_preload.so
SOFT := $(DIST)/rdma_verbs/librdma_soft.so
LAUNCHER := $(DIST)/rdma-verbs
# What cargo builds: static libraries, from which the shared ones are linked, and the launcher.
RELEASE := $T/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)release
RUST_A := $(RELEASE)/librdma_verbs.a
PRELOAD_RUST_A := $(RELEASE)/librdma_verbs_preload.a
SOFT_RUST_A := $(RELEASE)/librdma_verbs_soft.a
EXPORTS := $(shell sed -n 's/^\t\t\([a-z_]*\);$$/\1/p' src/rdma_verbs.map)
PRELOAD_EXPORTS := $(shell sed -n 's/^\t\t\(ibv_[a-z_0-9]*\);$$/\1/p' preload/preload.map)
SOFT_EXPORTS := $(shell sed -n 's/^\t\t\([a-z_0-9]*\);$$/\1/p' soft/soft.map)
MAN1 := $(wildcard man/*.1)
MAN3 := $(wildcard man/*.3)
MAN7 := $(wildcard man/*.7)

.PHONY: all
all: $(SO) $(DIST)/$(SONAME) $(DIST)/librdma_verbs.so $(A) $(PRELOAD) $(SOFT) $(LAUNCHER)

.PHONY: help
help:
	@echo 'make                the libraries and the launcher'
	@echo 'make install        ... into prefix=$(prefix) (also libdir, includedir, mandir, DESTDIR); make uninstall'
	@echo 'make demo           a client and a server over the software device; make demo-vm: over Soft-RoCE in a virtual machine'
	@echo 'make check          all tests'
	@echo 'make check-device ADDR=192.0.2.1   the device tests, on an RDMA device of this host'
	@echo 'make check-preload  rdma-verbs on a Soft-RoCE device: the distribution'"'"'s programs, and some that break a rule'
	@echo 'make bench          what a call costs, against the inline functions'
	@echo 'make vm CMD="..."   runs a command in the virtual machine'
	@echo 'make header         writes include/rdma/rdma_verbs.h anew from src/ffi.rs'
	@echo 'make setup          installs what all of this needs (as root, or with SETUP=1 through sudo)'
	@echo 'make clean          removes all output'

## Building

# The launcher finds its libraries from where it is itself.
.PHONY: cargo-build
cargo-build:
	@c-tests/setup build
	RDMA_VERBS_LIBDIR_FROM_BINDIR='$(shell realpath -m -s --relative-to='$(bindir)' '$(libdir)')' \
		$(CARGO) build --release --locked --workspace --target-dir $T
$(RUST_A) $(PRELOAD_RUST_A) $(SOFT_RUST_A) $(RELEASE)/rdma-verbs: cargo-build ;

# rustc hands its linker a version script of its own and drops a second one, so the installed object is linked here.
$(SO): $(RUST_A) src/rdma_verbs.map Makefile
	mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ \
		-Wl,-soname,$(SONAME),--version-script=src/rdma_verbs.map,--no-undefined-version \
		-Wl,-z,defs,-z,relro,-z,now,-z,nodelete,--as-needed,--gc-sections \
		$(EXPORTS:%=-Wl,-u,%) $(RUST_A) -lpthread -ldl

$(DIST)/$(SONAME) $(DIST)/librdma_verbs.so: $(SO)
	ln -sf $(<F) $@

# A plug-in of the launcher's: no SONAME, and libibverbs's version nodes.
$(PRELOAD): $(PRELOAD_RUST_A) preload/preload.map Makefile
	mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ \
		-Wl,--version-script=preload/preload.map,--no-undefined-version \
		-Wl,-z,defs,-z,relro,-z,now,-z,nodelete,--as-needed,--gc-sections \
		$(PRELOAD_EXPORTS:%=-Wl,-u,%) $(PRELOAD_RUST_A) -lpthread -ldl

# In place of libibverbs and librdmacm: another plug-in of the launcher's, with the nodes of both.
$(SOFT): $(SOFT_RUST_A) soft/soft.map Makefile
	mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -o $@ \
		-Wl,--version-script=soft/soft.map,--no-undefined-version \
		-Wl,-z,defs,-z,relro,-z,now,-z,nodelete,--as-needed,--gc-sections \
		$(SOFT_EXPORTS:%=-Wl,-u,%) $(SOFT_RUST_A) -lpthread -ldl

$(LAUNCHER): $(RELEASE)/rdma-verbs
	mkdir -p $(@D)
	cp $< $@

# One object that shows nothing but the exported names: two Rust libraries in one program would clash in the symbols
# of Rust's standard library; groups are dissolved, because another archive may have one of the same name. Without the
# LLVM sections, which the plugin of an older LLVM cannot read.
$(A): $(RUST_A) src/rdma_verbs.map Makefile
	mkdir -p $(@D)
	printf '%s\n' $(EXPORTS) >$(DIST)/exports
	$(CC) -r -nostdlib -o $(DIST)/rdma_verbs.o -Wl,--gc-sections,--force-group-allocation $(EXPORTS:%=-Wl,-u,%) $(RUST_A)
	$(OBJCOPY) --keep-global-symbols=$(DIST)/exports --strip-debug --remove-section=.llvmbc \
		--remove-section=.llvmcmd $(DIST)/rdma_verbs.o
	rm -f $@
	$(AR) rcs $@ $(DIST)/rdma_verbs.o

.PHONY: header
header:
	BLESS=1 $(CARGO) test --locked --target-dir $T --test header

.PHONY: clean
clean:
	rm -rf $T

## Installing

# Installs what `make` has built, and builds nothing: root may have no cargo, or another one.
.PHONY: install
install:
	@test -e $(SO) -a -e $(A) -a -e $(PRELOAD) -a -e $(SOFT) -a -e $(LAUNCHER) || { echo 'make install: nothing is built yet: type `make` first' >&2; exit 1; }
	$(INSTALL) -d '$(DESTDIR)$(bindir)' '$(DESTDIR)$(libdir)/rdma_verbs' '$(DESTDIR)$(pkgconfigdir)' '$(DESTDIR)$(includedir)/rdma_verbs/rdma'
	$(INSTALL_PROGRAM) $(SO) '$(DESTDIR)$(libdir)/'
	ln -sf $(notdir $(SO)) '$(DESTDIR)$(libdir)/$(SONAME)'
	ln -sf $(SONAME) '$(DESTDIR)$(libdir)/librdma_verbs.so'
	$(INSTALL_DATA) $(A) '$(DESTDIR)$(libdir)/'
	$(INSTALL_PROGRAM) $(PRELOAD) $(SOFT) '$(DESTDIR)$(libdir)/rdma_verbs/'
	$(INSTALL_PROGRAM) $(LAUNCHER) '$(DESTDIR)$(bindir)/'
	$(INSTALL_DATA) include/rdma/rdma_verbs.h '$(DESTDIR)$(includedir)/rdma_verbs/rdma/'
	sed -e 's|@prefix@|$(prefix)|' -e 's|@VERSION@|$(VERSION)|' $(foreach dir,exec_prefix libdir includedir, \
		-e 's|@$(dir)@|$(patsubst $(prefix)/%,$${prefix}/%,$(patsubst $(prefix),$${prefix},$($(dir))))|') \
		pkgconfig/rdma_verbs.pc.in >'$(DESTDIR)$(pkgconfigdir)/rdma_verbs.pc'
	chmod 644 '$(DESTDIR)$(pkgconfigdir)/rdma_verbs.pc'
	$(INSTALL) -d $(foreach section,1 3 7,'$(DESTDIR)$(mandir)/man$(section)')
	$(INSTALL_DATA) $(MAN1) '$(DESTDIR)$(mandir)/man1/'
	for page in $(MAN3:man/%.3=%); do \
		$(INSTALL_DATA) man/$$page.3 '$(DESTDIR)$(mandir)/man3/'$$page$(man3ext) || exit 1; \
	done
	$(INSTALL_DATA) $(MAN7) '$(DESTDIR)$(mandir)/man7/'

.PHONY: uninstall
uninstall:
	rm -f $(foreach file,$(notdir $(SO) $(A)) $(SONAME) librdma_verbs.so,'$(DESTDIR)$(libdir)/$(file)') \
		'$(DESTDIR)$(bindir)/rdma-verbs' '$(DESTDIR)$(pkgconfigdir)/rdma_verbs.pc' \
		$(foreach page,$(MAN3:man/%.3=man3/%$(man3ext)) $(MAN7:man/%=man7/%) $(MAN1:man/%=man1/%),'$(DESTDIR)$(mandir)/$(page)')
	rm -rf '$(DESTDIR)$(includedir)/rdma_verbs' '$(DESTDIR)$(libdir)/rdma_verbs'

# What the tests are built against: an installation, as a user has it, whatever folders the command line names.
STAGE := $T/stage
.PHONY: stage
stage: all
	$(MAKE) install DESTDIR= prefix='$(abspath $(STAGE))' exec_prefix='$$(prefix)' bindir='$$(prefix)/bin' libdir='$$(prefix)/lib' \
		includedir='$$(prefix)/include' mandir='$$(prefix)/share/man' pkgconfigdir='$$(libdir)/pkgconfig' \
		man3ext=.3 >/dev/null

## Testing

# Each folder of tests says in its tests.mk how it is built. All of it uses the staged installation; cargo must not see
# the variable, or it builds everything anew whenever that changes.
STAGED := PKG_CONFIG_PATH='$(abspath $(STAGE))/lib/pkgconfig:$(PKG_CONFIG_PATH)'

# Command lines of programs that print TAP, and what has to be made before they run.
TESTS := 'c-tests/cargo-tap --locked --workspace --target-dir $T' 'man/check'
TEST_FILES :=
# Defined recursively: they run when a rule needs them, after the stage is there.
staged = $(or $(shell $(STAGED) pkg-config $1 rdma_verbs),$(error type `make stage` first))
RDMA_VERBS_CFLAGS = $(call staged,--cflags)
RDMA_VERBS_LIBS = $(call staged,--libs) -Wl,-rpath,$(abspath $(STAGE))/lib
TEST_CFLAGS = -std=gnu11 -g -O1 -Wall -Wextra -Werror

include $(wildcard c-tests/*/*.mk) benches/bench.mk

.PHONY: check
check: setup stage
	$(STAGED) $(MAKE) $(TEST_FILES)
	$(STAGED) c-tests/run-tap -j $(shell nproc) $(TESTS)

## Setting up

# All that `make check` and `make demo` need; `make` alone needs less.
export SETUP
.PHONY: setup setup-build
setup:
	@c-tests/setup all
setup-build:
	@c-tests/setup install-build
