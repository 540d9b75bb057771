/* A libFuzzer target: any bytes, as text of events, as packets and as a log, in blocks of any sizes, with small limits,
 * so that they are reached.
 *
 * Beside what the sanitizers see, numbers must lie in their vocabularies, and every byte must be accounted for. Text
 * without a broken event must give the same rows in blocks as in one piece. A third run has too little memory: fuzz.sh
 * gives the scanner this file's allocator.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_lines.h"
#include "perfetto.h"
#include "scanner.h"

enum { HEADER = 2, MAX_FUZZED_COLUMNS = 11 };

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static size_t allocations_left = SIZE_MAX;

void *fuzz_calloc(size_t count, size_t size);
void *fuzz_realloc(void *memory, size_t size);

void *fuzz_calloc(size_t count, size_t size) {
    return allocations_left && allocations_left-- ? calloc(count, size) : NULL;
}

void *fuzz_realloc(void *memory, size_t size) {
    return allocations_left && allocations_left-- ? realloc(memory, size) : NULL;
}

/* The smallest generator that cuts well. */
static size_t next_size(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 30 ? *state >> 24 & 0x3f : *state >> 16 & 0xfff;
}

/* A scanner that keeps all categories; NULL if there was no memory. */
static struct scanner *make_scanner(uint64_t max_event, uint32_t max_strings) {
    static const char *const categories[] = {
        [SCANNER_OP] = "\"cpu_op\"",
        [SCANNER_ANNOTATION] = "\"user_annotation\"",
        [SCANNER_RUNTIME] = "\"cuda_runtime\"",
        [SCANNER_KERNEL] = "\"kernel\"",
        [SCANNER_MEMCPY] = "\"gpu_memcpy\"",
        [SCANNER_MEMSET] = "\"gpu_memset\"",
        [SCANNER_OVERHEAD] = "\"overhead\"",
        [SCANNER_MTIA] = "\"mtia_ccp_events\"",
        [SCANNER_MTIA_INSIGHT] = "\"mtia_insight\"",
        [SCANNER_MTIA_WORKLOADD] = "\"mtia_workloadd\"",
        [SCANNER_HPU] = "\"hpu_op\"",
        [SCANNER_INSTANT] = "\"cpu_instant_event\"",
        [SCANNER_FRAME] = "\"python_function\"",
    };
    struct scanner *scanner = scanner_new(7, "\"record_param_comms\"", "\"[memory]\"", max_event, max_strings);
    bool whole = scanner != NULL;
    for (int code = 0; scanner && code < (int)(sizeof categories / sizeof *categories); code++) {
        whole = scanner_keep(scanner, categories[code], code) && whole;
    }
    if (!whole) {
        scanner_free(scanner);
    }
    return whole ? scanner : NULL;
}

/* A scanner that has been fed all the text; NULL if there was no memory. */
static struct scanner *feed(const uint8_t *text, size_t size, uint32_t cuts, uint64_t max_event, uint32_t max_strings) {
    struct scanner *scanner = make_scanner(max_event, max_strings);
    int status = scanner ? SCANNER_MORE : SCANNER_NO_MEMORY;
    for (size_t at = 0; at < size && status != SCANNER_NO_MEMORY;) {
        const size_t wanted = cuts ? next_size(&cuts) : size;
        const size_t block = wanted < size - at ? wanted : size - at;
        /* A copy of its own, so that a read past the block is one past the allocation. */
        uint8_t *copy = malloc(block + !block);
        require(copy != NULL);
        memcpy(copy, text + at, block);
        status = scanner_feed(scanner, copy, block);
        free(copy);
        at += block;
    }
    if (status != SCANNER_NO_MEMORY) {
        status = scanner_finish(scanner);
    }
    if (status == SCANNER_NO_MEMORY) {
        scanner_free(scanner);
        return NULL;
    }
    return scanner;
}

static struct scanner *scan(const uint8_t *text, size_t size, uint32_t cuts, uint64_t max_event, uint32_t max_strings) {
    struct scanner *scanner = feed(text, size, cuts, max_event, max_strings);
    require(scanner != NULL);
    const int status = scanner_finish(scanner);
    require(status == SCANNER_LIST_END || status == SCANNER_CUT);
    size_t rest;
    const uint8_t *left = scanner_rest(scanner, &rest);
    require(scanner_position(scanner) - 7 + rest == size);
    require(!rest || !memcmp(left, text + size - rest, rest));
    require(status == SCANNER_CUT || (rest && *left == ']'));
    return scanner;
}

static size_t vocabulary_size(const struct scanner *scanner, int vocabulary) {
    const uint8_t *bytes;
    const uint64_t *ends, *positions;
    const size_t count = scanner_strings(scanner, vocabulary, &bytes, &ends, &positions);
    uint64_t sum = 0;
    for (size_t index = 0; index < count; index++) {
        require(ends[index] >= (index ? ends[index - 1] : 0));
        for (uint64_t at = index ? ends[index - 1] : 0; at < ends[index]; at++) {
            sum += bytes[at];
        }
        sum += positions[index];
    }
    require(sum || count <= 1);
    return count;
}

/* Numbers of a column lie within a vocabulary, or are -1. */
static void check_numbers(const struct scanner *scanner, const void *column, size_t rows, int vocabulary) {
    const int64_t count = (int64_t)vocabulary_size(scanner, vocabulary);
    for (size_t row = 0; row < rows; row++) {
        const int32_t number = ((const int32_t *)column)[row];
        require(number >= -1 && number < count);
    }
}

static void check_event_numbers(const struct scanner *scanner, void **columns, size_t rows) {
    check_numbers(scanner, columns[EVENT_NAME], rows, SCANNER_TEXTS);
    check_numbers(scanner, columns[EVENT_SHAPE], rows, SCANNER_SHAPES);
    check_numbers(scanner, columns[EVENT_THREAD], rows, SCANNER_THREADS);
    for (size_t row = 0; row < rows; row++) {
        require(((const int64_t *)columns[EVENT_START])[row] >= 0);
        require(((const int64_t *)columns[EVENT_DURATION])[row] >= 0);
        require(((const uint8_t *)columns[EVENT_CATEGORY])[row] < SCANNER_INSTANT);
    }
}

/* Take a table from each of two scanners; where `equal`, they must be. */
static void check_table(struct scanner *left, struct scanner *right, int table, bool equal) {
    static const uint8_t widths[SCANNER_TABLES][MAX_FUZZED_COLUMNS] = {
        {4, 1, 8, 8, 4, 4, 8, 8, 8, 4, 4}, {8, 4, 4, 4, 8, 8, 8, 4, 8, 8}, {8, 4, 4, 8, 8, 8}, {4, 8, 8, 4}, {4, 4, 8, 4, 8}};
    void *columns[2][MAX_FUZZED_COLUMNS] = {{NULL}};
    const size_t rows = scanner_rows(left, table);
    require(!equal || rows == scanner_rows(right, table));
    for (int column = 0; column < MAX_FUZZED_COLUMNS && widths[table][column]; column++) {
        columns[0][column] = scanner_take(left, table, column);
        columns[1][column] = scanner_take(right, table, column);
        require(!equal || !rows || !memcmp(columns[0][column], columns[1][column], rows * widths[table][column]));
    }
    if (table == SCANNER_EVENTS) {
        check_event_numbers(left, columns[0], rows);
        check_event_numbers(right, columns[1], scanner_rows(right, table));
    }
    for (int column = 0; column < MAX_FUZZED_COLUMNS; column++) {
        scanner_release(columns[0][column]);
        scanner_release(columns[1][column]);
    }
}

/* Lines of NCCL lie in the text one behind the other. */
static void check_lines(const uint8_t *text, size_t size) {
    const size_t room = size / NCCL_SHORTEST_LINE + 1;
    struct nccl_line *found = malloc(room * sizeof *found);
    size_t lines = 0;
    uint64_t end = 0;
    require(found != NULL);
    const size_t count = nccl_lines(text, size, found, room, &lines);
    require(count <= lines && count <= room);
    for (size_t row = 0; row < count; row++) {
        require(found[row].start >= end && found[row].end >= found[row].start && found[row].end <= size);
        end = found[row].end;
    }
    free(found);
}

/* -- packets */

/* Feed all bytes to one of the two readings, in blocks that are allocations of their own. */
static bool feed_packets(struct perfetto *perfetto, const uint8_t *bytes, size_t size, uint32_t cuts, bool is_second) {
    bool whole = true;
    for (size_t at = 0; whole && at < size;) {
        const size_t wanted = cuts ? next_size(&cuts) : size;
        const size_t block = wanted < size - at ? wanted : size - at;
        uint8_t *copy = malloc(block + !block);
        require(copy != NULL);
        memcpy(copy, bytes + at, block);
        whole = is_second ? perfetto_scan(perfetto, copy, block) : perfetto_survey(perfetto, copy, block);
        free(copy);
        at += block;
    }
    return whole;
}

/* Both readings of a file, to a scanner's rows; false if there was no memory. */
static bool read_packets(const uint8_t *bytes, size_t size, uint32_t cuts, size_t max_packet, uint32_t max_strings,
                         struct scanner *scanner) {
    struct perfetto *perfetto = perfetto_new(max_packet, max_strings);
    bool whole = perfetto && feed_packets(perfetto, bytes, size, cuts, false);
    if (whole) {
        const int32_t *tracks;
        const int64_t *times;
        const uint8_t *kinds, *uuids;
        size_t described;
        const size_t marks = perfetto_marks(perfetto, &tracks, &times, &kinds);
        const size_t all_tracks = perfetto_tracks(perfetto, &uuids);
        int64_t *top = malloc(8 * all_tracks + 8), *below = malloc(8 * marks + 8), *durations = malloc(8 * marks + 8);
        uint64_t *ends = malloc(8 * all_tracks + 8);
        require(top && below && durations && ends);
        size_t beginnings = 0;
        bool is_ordered = true;
        for (size_t mark = 0; mark < marks; mark++) {
            require(tracks[mark] >= -1 && tracks[mark] < (int64_t)all_tracks && times[mark] >= 0);
            beginnings += kinds[mark] == PERFETTO_BEGINS;
            is_ordered = is_ordered && (!mark || times[mark] >= times[mark - 1]);
            durations[mark] = 1;
        }
        if (is_ordered) {
            perfetto_pair(marks, tracks, times, kinds, NULL, NULL, all_tracks, top, below, durations);
        }
        for (size_t begun = 0; begun < beginnings; begun++) {
            require(durations[begun] >= -1);
        }
        for (size_t track = 0; track < all_tracks; track++) {
            ends[track] = 3;
        }
        perfetto_descriptors(perfetto, &described);
        require(described <= size * 5);
        /* The first track has a place of three bytes, the others an empty one; the last has none. */
        const size_t placed = all_tracks > 1 ? all_tracks - 1 : all_tracks;
        whole = perfetto_rewind(perfetto, scanner, (const uint8_t *)"1,2", ends, placed, durations, beginnings) &&
                feed_packets(perfetto, bytes, size, cuts, true);
        require(perfetto_position(perfetto) <= size);
        free(top);
        free(below);
        free(durations);
        free(ends);
    }
    perfetto_free(perfetto);
    return whole;
}

/* In blocks and in one piece, packets come to the same rows. */
static void check_packets(const uint8_t *data, size_t size) {
    const size_t max_packet = data[0] & 1 ? 1 << 24 : 60;
    const uint32_t max_strings = data[0] & 2 ? 1 << 20 : 5;
    struct scanner *whole = make_scanner(1 << 24, max_strings), *cut = make_scanner(1 << 24, max_strings);
    require(whole && cut);
    require(read_packets(data + HEADER, size - HEADER, 0, max_packet, max_strings, whole));
    require(read_packets(data + HEADER, size - HEADER, data[1] + 1u, max_packet, max_strings, cut));
    require(scanner_seen(whole) == scanner_seen(cut));
    for (int table = 0; table < SCANNER_TABLES; table++) {
        check_table(whole, cut, table, true);
    }
    scanner_free(whole);
    scanner_free(cut);
    allocations_left = data[0] >> 2;
    struct scanner *poor = make_scanner(1 << 24, max_strings);
    if (poor) {
        read_packets(data + HEADER, size - HEADER, data[1] + 1u, max_packet, max_strings, poor);
    }
    scanner_free(poor);
    allocations_left = SIZE_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_lines(data, size);
    if (size < HEADER) {
        return 0;
    }
    check_packets(data, size);
    const uint64_t max_event = data[0] & 1 ? 1 << 24 : 300;
    const uint32_t max_strings = data[0] & 2 ? 1 << 20 : 5;
    struct scanner *whole = scan(data + HEADER, size - HEADER, 0, max_event, max_strings);
    struct scanner *cut = scan(data + HEADER, size - HEADER, data[1] + 1u, max_event, max_strings);
    const bool equal = !scanner_lost(whole, LOSS_BROKEN)->count && !scanner_lost(cut, LOSS_BROKEN)->count;
    require(!equal || scanner_seen(whole) == scanner_seen(cut));
    for (int table = 0; table < SCANNER_TABLES; table++) {
        check_table(whole, cut, table, equal);
    }
    scanner_free(whole);
    scanner_free(cut);
    allocations_left = data[0] >> 2;
    scanner_free(feed(data + HEADER, size - HEADER, data[1] + 1u, max_event, max_strings));
    allocations_left = SIZE_MAX;
    return 0;
}
