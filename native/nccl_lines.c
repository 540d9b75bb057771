/* The lines of NCCL in a block of a log: which say the same, and which calls they tell.
 *
 * NCCL_DEBUG_SUBSYS=COLL,TUNING logs each call, which makes gigabytes of lines that differ in addresses and numbers
 * alone. `nccl_lines` gives those that say the same one key, so that the caller reads one of them; what it says is the
 * caller's to read. Nothing is kept between calls, and text may be anything.
 */
#include <stdbool.h>
#include <string.h>

#include "nccl_lines.h"

enum { MOST_WORDS = 48, LONGEST_LINE = 1000 };

struct words {
    const uint8_t *starts[MOST_WORDS], *ends[MOST_WORDS];
    int count;
};

static void split(const uint8_t *at, const uint8_t *end, struct words *words) {
    words->count = 0;
    while (words->count < MOST_WORDS) {
        while (at < end && *at <= ' ') {
            at++;
        }
        if (at == end) {
            return;
        }
        words->starts[words->count] = at;
        while (at < end && *at > ' ') {
            at++;
        }
        words->ends[words->count++] = at;
    }
}

/* Whether there is a word of that number and it is this text. */
static bool is(const struct words *words, int number, const char *text) {
    const size_t size = strlen(text);
    return number < words->count && (size_t)(words->ends[number] - words->starts[number]) == size &&
           memcmp(words->starts[number], text, size) == 0;
}

/* The first word from a number on that is this text; -1 without. */
static int find(const struct words *words, int number, const char *text) {
    for (; number < words->count; number++) {
        if (is(words, number, text)) {
            return number;
        }
    }
    return -1;
}

/* The key with a piece of text added, eight bytes at a time, each mixed as murmur3's finaliser does. */
static uint64_t mix(uint64_t key, const uint8_t *at, const uint8_t *end) {
    key ^= (uint64_t)(end - at);
    while (at < end) {
        uint64_t piece = 0;
        const size_t left = (size_t)(end - at), size = left < sizeof piece ? left : sizeof piece;
        memcpy(&piece, at, size);
        key = (key ^ piece) * UINT64_C(0xFF51AFD7ED558CCD);
        key ^= key >> 32;
        at += size;
    }
    return key;
}

/* A number without a sign that is spelled in hexadecimal digits, after "0x" if that stands there; others are 0. */
static uint64_t hexadecimal(const uint8_t *at, const uint8_t *end) {
    uint64_t number = 0;
    if (end - at > 2 && at[0] == '0' && at[1] == 'x') {
        at += 2;
    }
    for (; at < end; at++) {
        const int digit = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : -1;
        if (digit < 0) {
            return 0;
        }
        number = number << 4 | (uint64_t)digit;
    }
    return number;
}

/* Fill in what a line is; false if it is none of NCCL's. */
static bool read_line(const uint8_t *start, const uint8_t *end, struct nccl_line *line) {
    struct words words;
    split(start, end, &words);
    const int nccl = find(&words, 0, "NCCL");
    const bool warns = nccl >= 0 && is(&words, nccl + 1, "WARN");
    if (nccl < 0 || !(warns || is(&words, nccl + 1, "INFO"))) {
        return false;
    }
    /* "host:pid:tid [device]", with the place in NCCL's source after it in warnings; before it may stand the time. */
    const int process = nccl - (warns ? 3 : 2);
    const uint8_t *from = process < 0 ? start : words.starts[process];
    const uint64_t of_process = process < 0 ? 0 : mix(1, from, words.ends[process]);
    const int said = nccl + 2;
    line->process = of_process;
    line->kind = NCCL_OTHER;
    line->op_count = line->communicator = 0;
    if (is(&words, said + 1, "opCount")) {
        const int count = find(&words, said + 3, "count");
        if (count > 0 && is(&words, count + 2, "datatype") && count + 3 < words.count) {
            const int communicator = find(&words, count, "comm");
            line->kind = NCCL_CALL;
            line->op_count = hexadecimal(words.starts[said + 2], words.ends[said + 2]);
            if (communicator > 0 && communicator + 1 < words.count) {
                line->communicator = hexadecimal(words.starts[communicator + 1], words.ends[communicator + 1]);
            }
            line->key = mix(of_process, words.starts[said], words.ends[said]);
            line->key = mix(line->key, words.starts[count + 1], words.ends[count + 3]);
            return true;
        }
    }
    if (is(&words, said, "Bytes") || is(&words, said + 1, "Bytes") || is(&words, said + 2, "Bytes")) {
        line->kind = NCCL_CHOICE;
    }
    /* Of channels there are thousands, which differ in their ranks. */
    const int via = find(&words, said, "via");
    line->key = via < 0 ? mix(0, from, end) : mix(of_process, words.starts[via], end);
    return true;
}

size_t nccl_lines(const uint8_t *text, size_t size, struct nccl_line *found, size_t room, size_t *lines) {
    const uint8_t *at = text, *const end = text + size;
    size_t count = 0;
    *lines = 0;
    while (at < end && count < room) {
        const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
        const uint8_t *const stop = newline ? newline : end;
        ++*lines;
        if (read_line(at, stop - at > LONGEST_LINE ? at + LONGEST_LINE : stop, &found[count])) {
            found[count].start = (uint64_t)(at - text);
            found[count++].end = (uint64_t)(stop - text);
        }
        at = newline ? newline + 1 : end;
    }
    return count;
}
