#!/usr/bin/env bash
# Runs the passes over columns on hostile ones, then fuzzes the scanner and the reader of packets for so many seconds (60), both with AddressSanitizer and UBSan, and prints executions, coverage and
# crashes. Fails if there was a crash; the input then lies in build/fuzz.
#
#   native/fuzz.sh [SECONDS]
#
# Needs clang with its sanitizers (Debian: clang). The corpus in build/fuzz/corpus grows from run to run.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:-60}
out=../build/fuzz
mkdir -p "$out/corpus"

flags=(-std=c99 -g -O1 -Wall -Wextra -Wpedantic -Wconversion -fsanitize=fuzzer,address,undefined
    -fno-sanitize-recover=undefined)
clang "${flags[@]}" -Dcalloc=fuzz_calloc -Drealloc=fuzz_realloc -c scanner.c -o "$out/scanner.o"
clang "${flags[@]}" -Dcalloc=fuzz_calloc -Drealloc=fuzz_realloc -c vocabulary.c -o "$out/vocabulary.o"
clang "${flags[@]}" -Dcalloc=fuzz_calloc -Drealloc=fuzz_realloc -c perfetto.c -o "$out/perfetto.o"
clang "${flags[@]}" -c nccl_lines.c -o "$out/nccl_lines.o"
clang "${flags[@]}" fuzz.c "$out/nccl_lines.o" "$out/perfetto.o" "$out/scanner.o" "$out/vocabulary.o" -o "$out/fuzz"
python3 seeds.py "$out/seeds"

# What takes columns and no bytes: any numbers, in the order that callers give them.
checked=(-std=c99 -g -O1 -Wall -Wextra -Wpedantic -fsanitize=address,undefined -fno-sanitize-recover=undefined)
clang "${checked[@]}" hostile.c calls.c columns.c intervals.c nesting.c replay.c -o "$out/hostile"
"$out/hostile" 20000

status=0
"$out/fuzz" -max_total_time="$seconds" -max_len=8192 -dict=fuzz.dict -timeout=10 -rss_limit_mb=1024 \
    -print_final_stats=1 -artifact_prefix="$out/" "$out/corpus" "$out/seeds" >"$out/log" 2>&1 || status=$?

executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$out/log")
coverage=$(sed -n 's/.*\(cov: [0-9]* ft: [0-9]*\).*/\1/p' "$out/log" | tail -n 1)
[[ $status -eq 0 ]] && crashes=0 || crashes=1
echo "fuzzed for $seconds s: ${executions:-0} executions, ${coverage:-cov: 0} (edges, features), $crashes crashes"
if [[ $status -ne 0 ]]; then
    tail -n 60 "$out/log"
    exit "$status"
fi
