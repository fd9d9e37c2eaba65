#!/bin/sh
# The NEON path, compiled by a cross compiler and run by an emulator of the processor:
# test_cpu and the golden vectors; with --all also the tests of codecs, pages and conversions, by the
# code that -O3 makes, as it is installed (ten minutes).
#
#     neon.sh SOURCE_FOLDER WORK_FOLDER [--all]
#
# Status 77 where compiler or emulator are missing (Debian: gcc-aarch64-linux-gnu
# libc6-dev-arm64-cross qemu-user).
set -eu
source=$1 work=$2 all=${3:-}
cc=${KVT_AARCH64_CC:-aarch64-linux-gnu-gcc}
emulator=
for name in qemu-aarch64 qemu-aarch64-static; do
    if command -v "$name" >/dev/null; then
        emulator=$name
    fi
done
if [ "$(uname -m)" = aarch64 ]; then
    echo "neon: SKIPPED, test_cpu itself runs the NEON path here"
    exit 77
fi
if ! command -v "$cc" >/dev/null || [ -z "$emulator" ]; then
    echo "neon: SKIPPED, THE NEON PATH IS NOT TESTED: needs $cc and qemu-aarch64" \
         "(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)"
    exit 77
fi
mkdir -p "$work"
cd "$source/kernels"
# -O1: what the emulator does is slow anyway, and the compiler's time is most of the test's.
"$cc" -std=c17 -O1 -Wall -Wextra -Wconversion -Wshadow -Werror -ffp-contract=off -D_GNU_SOURCE \
    -I "$source" -static -o "$work/test_cpu_neon" \
    codec_ref.c codec_ref_channel.c codec_ref_raw.c codec_ref_rotated.c codec_ref_row.c \
    codec_set.c cpu.c cpu_neon.c cpu_portable.c geometry.c say.c "$source/tests/test_cpu.c"
"$emulator" "$work/test_cpu_neon" 1 110
# The golden vectors: units and pages. The hash is compiled in, because there is no library for that
# processor here; gcc 12 at -O2 and up miscompiles it there without the memory access by memcpy.
include=${KVT_XXHASH_INCLUDE:-/usr/include}
"$cc" -std=c17 -O1 -ffp-contract=off -D_GNU_SOURCE -DXXH_INLINE_ALL -DXXH_FORCE_MEMORY_ACCESS=0 \
    -I "$source" -idirafter "$include" -static -o "$work/test_golden_neon" \
    codec_ref.c codec_ref_channel.c codec_ref_raw.c codec_ref_rotated.c codec_ref_row.c \
    codec_set.c cpu.c cpu_neon.c cpu_portable.c geometry.c hash.c page.c page_header.c \
    page_shape.c say.c "$source/tests/test_golden.c"
"$emulator" "$work/test_golden_neon" "$source/tests/golden"
[ "$all" = --all ] || exit 0
"$cc" -std=c17 -O3 -ffp-contract=off -D_GNU_SOURCE -I "$source" -c -o "$work/cpu_neon.o" cpu_neon.c
for test in test_cpu test_golden test_codec test_page test_sets test_convert; do
    "$cc" -std=c17 -O1 -ffp-contract=off -D_GNU_SOURCE -DXXH_INLINE_ALL -DXXH_FORCE_MEMORY_ACCESS=0 \
        -I "$source" -idirafter "$include" -static -o "$work/$test" \
        codec_ref.c codec_ref_channel.c codec_ref_raw.c codec_ref_rotated.c codec_ref_row.c \
        codec_set.c cpu.c "$work/cpu_neon.o" cpu_portable.c geometry.c hash.c page.c page_header.c \
        page_shape.c page_transcode.c say.c "$source/tests/$test.c" -lm
    case $test in
    test_cpu) "$emulator" "$work/$test" 77 1000 ;;
    test_golden) "$emulator" "$work/$test" "$source/tests/golden" ;;
    *) "$emulator" "$work/$test" ;;
    esac
done
