# Sourced by what needs a Debian that has nothing: a temporary folder $place, removed at the end unless
# $keep is set, and in it $system, made by debootstrap from the mirror that this machine's own apt uses.
# Environment: SUITE (default: this machine's own, or bookworm), MIRROR.
# shellcheck shell=bash disable=SC1091,SC2016

# Of apt or as it is.
bare_need() {
    command -v "$1" >/dev/null && return
    apt-get install -y --no-install-recommends "$2" >/dev/null ||
        { apt-get update && apt-get install -y --no-install-recommends "$2"; } >/dev/null
}

bare_leave() {
    if [ -n "${keep:-}" ]; then
        echo "left for a look: $place"
    else
        rm -rf --one-file-system -- "$place"
    fi
}

bare_begin() {
    [ "$(id -u)" -eq 0 ] || { echo "$1: needs root, for chroot" >&2 && exit 3; }
    bare_need debootstrap debootstrap
    suite=${SUITE:-$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")}
    # The first mirror that apt has the suite's main packages from.
    mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE) $(REPO_URI) $(CODENAME) $(COMPONENT)' \
        'Created-By: Packages' |
        awk -v suite="$suite" '$3 == suite && $4 == "main" { print $2; exit }')}
    [ -n "$mirror" ] || { echo "$1: apt knows no mirror of $suite; set MIRROR" >&2 && exit 2; }
    place=$(mktemp -d "${TMPDIR:-/tmp}/kvtrunk-fresh.XXXXXX")
    system=$place/system
    trap bare_leave EXIT
}

# bare_system OPTION...: those of debootstrap.
bare_system() {
    local begun=$SECONDS
    if ! debootstrap "$@" "$suite" "$system" "$mirror" >"$place/debootstrap.log" 2>&1; then
        tail -n 30 "$place/debootstrap.log"
        exit 1
    fi
    echo "a bare $suite: $(grep -c '^Package:' "$system/var/lib/dpkg/status") packages," \
        "$((SECONDS - begun)) s"
}
