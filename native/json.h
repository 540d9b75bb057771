/* The tokens of JSON: where each ends, and whether it is JSON at all. Nothing is decoded here.
 *
 * Understood: JSON, and what Python's lenient decoder takes beside it: control characters and bytes that are no UTF-8
 * within strings, NaN and Infinity. Containers nest 64 deep at most, ten times what a trace needs: text that is skipped
 * after an error may be read once for each level, so that the limit also bounds the time that hostile bytes can cost.
 *
 * A function takes the place where a token begins and returns the place behind it, or NULL if it does not end well.
 * Then `problem` says why; it is NULL if the text ended too early, so that more of it could help. `end` is never read.
 */
#ifndef DDP_DOCTOR_JSON_H
#define DDP_DOCTOR_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER) && defined(_WIN64)
#include <intrin.h>
#endif

enum { MAX_DEPTH = 64 };

struct reading {
    const uint8_t *end;
    const char *problem;
};

struct span {
    const uint8_t *at;
    size_t size;
};

static inline const uint8_t *refuse(struct reading *reading, const char *problem) {
    reading->problem = problem;
    return NULL;
}

static inline bool is_space(uint8_t byte) {
    return byte <= ' ' && (byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t');
}

static inline bool is_digit(uint8_t byte) {
    return (uint8_t)(byte - '0') < 10;
}

static inline uint64_t load8(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HAS_ORDERED_WORDS 1
#elif defined(_MSC_VER) && defined(_WIN64)
#define HAS_ORDERED_WORDS 1
#else
#define HAS_ORDERED_WORDS 0
#endif

/* Which of eight bytes equal `byte`: their high bits. Bytes behind the first match in memory order may be marked
 * falsely on little-endian machines, those before it on others, so that only "none" and the first mark can be used. */
static inline uint64_t marks(uint64_t word, uint8_t byte) {
    const uint64_t low = 0x0101010101010101u;
    const uint64_t differences = word ^ (low * byte);
    return (differences - low) & ~differences & (low << 7);
}

/* How many bytes before the first mark are known to have none: 0 where the machine offers no quick way to tell. */
static inline size_t unmarked(uint64_t marked) {
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return (size_t)__builtin_ctzll(marked) / 8;
#elif defined(_MSC_VER) && defined(_WIN64)
    unsigned long bit;
    _BitScanForward64(&bit, marked);
    return bit / 8;
#else
    (void)marked;
    return 0;
#endif
}

/* The first byte that is no space: never the end, where the next token could not begin. */
static inline const uint8_t *space_end(const struct reading *reading, const uint8_t *at) {
    for (; at < reading->end; at++) {
        if (!is_space(*at)) {
            return at;
        }
    }
    return NULL;
}

/* `at` is behind the backslash. */
static inline const uint8_t *escape_end(struct reading *reading, const uint8_t *at) {
    if (at == reading->end) {
        return NULL;
    }
    if (*at != 'u') {
        return *at && strchr("\"\\/bfnrt", *at) ? at + 1 : refuse(reading, "invalid \\escape");
    }
    for (int digit = 0; digit < 4; digit++) {
        at++;
        if (at == reading->end) {
            return NULL;
        }
        if (!is_digit(*at) && (uint8_t)((*at | 0x20) - 'a') >= 6) {
            return refuse(reading, "invalid \\uXXXX escape");
        }
    }
    return at + 1;
}

static inline const uint8_t *string_end(struct reading *reading, const uint8_t *at) {
    at++;
    for (;;) {
        while (reading->end - at >= 8) {
            const uint64_t word = load8(at);
            const uint64_t marked = marks(word, '"') | marks(word, '\\');
            if (marked) {
                at += unmarked(marked);
                if (HAS_ORDERED_WORDS && *at == '"') {
                    return at + 1;
                }
                break;
            }
            at += 8;
        }
        while (at < reading->end && *at != '"' && *at != '\\') {
            at++;
        }
        if (at == reading->end) {
            return NULL;
        }
        if (*at == '"') {
            return at + 1;
        }
        at = escape_end(reading, at + 1);
        if (!at) {
            return NULL;
        }
    }
}

/* At least one digit. */
static inline const uint8_t *digits_end(struct reading *reading, const uint8_t *at, const char *otherwise) {
    const uint8_t *start = at;
    while (at < reading->end && is_digit(*at)) {
        at++;
    }
    if (at == reading->end) {
        return NULL;
    }
    return at > start ? at : refuse(reading, otherwise);
}

static inline const uint8_t *literal_end(struct reading *reading, const uint8_t *at, const char *literal) {
    for (; *literal; at++, literal++) {
        if (at == reading->end) {
            return NULL;
        }
        if (*at != (uint8_t)*literal) {
            return refuse(reading, "expecting value");
        }
    }
    return at;
}

static inline const uint8_t *number_end(struct reading *reading, const uint8_t *at) {
    static const char delimiter[] = "expecting ',' delimiter";
    if (*at == '-') {
        at++;
        if (at < reading->end && *at == 'I') {
            return literal_end(reading, at, "Infinity");
        }
    }
    const uint8_t *const start = at;
    at = digits_end(reading, at, "expecting value");
    if (at && *start == '0' && at - start > 1) {
        return refuse(reading, delimiter);
    }
    if (at && *at == '.') {
        at = digits_end(reading, at + 1, delimiter);
    }
    if (at && (*at | 0x20) == 'e') {
        at++;
        at += at < reading->end && (*at == '+' || *at == '-');
        at = digits_end(reading, at, delimiter);
    }
    return at;
}

static inline bool is_container(uint8_t first) {
    return first == '{' || first == '[';
}

/* A value that is no container. */
static inline const uint8_t *scalar_end(struct reading *reading, const uint8_t *at) {
    if (*at == '"') {
        return string_end(reading, at);
    }
    if (is_digit(*at) || *at == '-') {
        return number_end(reading, at);
    }
    switch (*at) {
    case 't': return literal_end(reading, at, "true");
    case 'f': return literal_end(reading, at, "false");
    case 'n': return literal_end(reading, at, "null");
    case 'N': return literal_end(reading, at, "NaN");
    case 'I': return literal_end(reading, at, "Infinity");
    default: return refuse(reading, "expecting value");
    }
}

/* A member's key and colon, and the space behind them: returns where its value begins. */
static inline const uint8_t *key_end(struct reading *reading, const uint8_t *at, struct span *key) {
    if (*at != '"') {
        return refuse(reading, "expecting property name enclosed in double quotes");
    }
    const uint8_t *end = string_end(reading, at);
    if (!end) {
        return NULL;
    }
    key->at = at + 1;
    key->size = (size_t)(end - at) - 2;
    end = space_end(reading, end);
    if (end && *end != ':') {
        return refuse(reading, "expecting ':' delimiter");
    }
    return end ? space_end(reading, end + 1) : NULL;
}

/* An object or a list. A loop, not a recursion: bytes must not choose how deep the stack grows. */
static const uint8_t *container_end(struct reading *reading, const uint8_t *at) {
    struct span key;
    uint64_t objects = 0; /* a bit for each open container, the innermost lowest: whether it is an object */
    int depth = 0;
    while (at) {
        if (is_container(*at)) {
            if (depth == MAX_DEPTH) {
                return refuse(reading, "nested too deeply");
            }
            const bool is_object = *at == '{';
            depth++;
            objects = objects << 1 | is_object;
            at = space_end(reading, at + 1);
            if (at && *at != (is_object ? '}' : ']')) {
                at = is_object ? key_end(reading, at, &key) : at;
                continue;
            }
        } else {
            at = scalar_end(reading, at);
        }
        while ((at = at ? space_end(reading, at) : NULL) && *at != ',') {
            if (*at != (objects & 1 ? '}' : ']')) {
                return refuse(reading, "expecting ',' delimiter");
            }
            at++;
            depth--;
            objects >>= 1;
            if (!depth) {
                return at;
            }
        }
        at = at ? space_end(reading, at + 1) : NULL;
        at = at && objects & 1 ? key_end(reading, at, &key) : at;
    }
    return NULL;
}

/* Which of eight bytes equal `byte`, all of them exactly: 1 in each that does. */
static inline uint64_t matches(uint64_t word, uint8_t byte) {
    const uint64_t low = 0x0101010101010101u, rest = low * 0x7f;
    const uint64_t differences = word ^ (low * byte);
    return (~(((differences & rest) + rest) | differences) >> 7) & low;
}

static inline const uint8_t *value_end(struct reading *reading, const uint8_t *at) {
    return is_container(*at) ? container_end(reading, at) : scalar_end(reading, at);
}

/* Where an object or a list that nobody wants ends, by its quotes and brackets alone, eight bytes at a time without a
 * branch; NULL where these do not tell: at an escape, at the text's end, or where quotes seem to be shifted by one.
 *
 * A product with 0x01..01 adds up, in each byte, the bytes up to there: quotes, whose parity says what is within
 * strings, and brackets, whose sum is the depth. */
static inline const uint8_t *outline_end(const struct reading *reading, const uint8_t *at) {
    const uint64_t low = 0x0101010101010101u;
    uint64_t depth = 0, quotes = 0;
    while (HAS_ORDERED_WORDS && reading->end - at >= 8 && depth <= MAX_DEPTH) {
        const uint64_t word = load8(at), brackets = word | low * 0x20;
        const uint64_t quote = matches(word, '"');
        const uint64_t count = (quote + quotes) * low, outside = ~count & low;
        const uint64_t opens = matches(brackets, '{') & outside, closes = matches(brackets, '}') & outside;
        const uint64_t depths = (depth + opens - closes) * low;
        /* A string ends before a letter. */
        const uint64_t shifted = (quote & outside) << 8 & word >> 6 & ~closes;
        const uint64_t ends = marks(depths, 0);
        if (ends || shifted || marks(word, '\\')) {
            return ends && !shifted && !marks(word, '\\') ? at + unmarked(ends) + 1 : NULL;
        }
        quotes = count >> 56 & 1;
        depth = depths >> 56;
        at += 8;
    }
    return NULL;
}

/* The same for a number: the first byte that is none of its digits, signs and points; NULL if there may be more. */
static inline const uint8_t *plain_number_end(const struct reading *reading, const uint8_t *at) {
    const uint64_t low = 0x0101010101010101u;
    for (; HAS_ORDERED_WORDS && reading->end - at >= 8; at += 8) {
        const uint64_t word = load8(at);
        const uint64_t marked = ((word - low * '-') | (word + low * (0x7f - '9')) | word) & low << 7;
        if (marked) {
            at += unmarked(marked);
            return (*at | 0x20) == 'e' || *at == '+' ? NULL : at;
        }
    }
    return NULL;
}

/* Any value, of which only the end is wanted: whether it is JSON is asked where that is needed to tell. */
static inline const uint8_t *rough_end(struct reading *reading, const uint8_t *at) {
    const uint8_t *end = NULL;
    if (is_digit(*at)) {
        end = plain_number_end(reading, at);
    } else if (is_container(*at)) {
        end = outline_end(reading, at);
    }
    return end ? end : value_end(reading, at);
}

#endif
