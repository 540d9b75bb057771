/* Numbers as a trace spells them, bare or as text, to integers: exactly, or not at all. */
#ifndef DDP_DOCTOR_NUMBERS_H
#define DDP_DOCTOR_NUMBERS_H

#include "json.h"

/* Start, duration and base each stay below it (the year 2096), so that their sum fits an int64. As in times.py. */
static const uint64_t MAX_NS = 3000000000000000000u;
static const int64_t UNUSABLE = -1;

/* Longer literals are no times. As in times.py. */
enum { MAX_LITERAL = 64 };

static inline bool is_text(struct span value) {
    return value.size >= 2 && *value.at == '"';
}

static inline struct span without_quotes(struct span value) {
    return is_text(value) ? (struct span){value.at + 1, value.size - 2} : value;
}

/* An exponent's digits; saturates where no time could follow. */
static inline bool exponent(const uint8_t *at, const uint8_t *end, int *value) {
    const bool is_negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    if (at == end) {
        return false;
    }
    for (*value = 0; at < end; at++) {
        if (!is_digit(*at)) {
            return false;
        }
        *value = *value < 10000 ? *value * 10 + (*at - '0') : *value;
    }
    *value = is_negative ? -*value : *value;
    return true;
}

/* Any decimal number in microseconds to ns; what lies below 1 ns is rounded, half up. */
static inline int64_t any_nanoseconds(struct span literal) {
    uint8_t digits[MAX_LITERAL]; /* without zeros before the first */
    int count = 0, power = 3;    /* ns are the digits times 10 ** power */
    bool has_digits = false, has_point = false;
    if (literal.size > MAX_LITERAL) {
        return UNUSABLE;
    }
    const uint8_t *at = literal.at, *const end = at + literal.size;
    const bool is_negative = at < end && *at == '-';
    at += at < end && (*at == '-' || *at == '+');
    for (; at < end && (is_digit(*at) || (*at == '.' && !has_point)); at++) {
        if (*at == '.') {
            has_point = true;
            continue;
        }
        has_digits = true;
        power -= has_point;
        if (count || *at != '0') {
            digits[count++] = (uint8_t)(*at - '0');
        }
    }
    if (at < end && (*at | 0x20) == 'e') {
        int shift;
        if (!exponent(at + 1, end, &shift)) {
            return UNUSABLE;
        }
        power += shift;
        at = end;
    }
    const int whole = count + power; /* digits before the point, once the unit is ns */
    if (at < end || !has_digits || (count && (is_negative || whole > 19))) {
        return UNUSABLE;
    }
    uint64_t number = 0; /* fits: 19 digits are below 2 ** 64 */
    for (int digit = 0; count && digit < whole; digit++) {
        number = number * 10 + (digit < count ? digits[digit] : 0);
    }
    number += whole >= 0 && whole < count && digits[whole] >= 5;
    return number <= MAX_NS ? (int64_t)number : UNUSABLE;
}

static inline bool are_digits(uint64_t word) {
    const uint64_t low = 0x0101010101010101u;
    return !(((word - low * '0') | (word + low * (0x7f - '9'))) & low << 7);
}

/* The number that eight digits spell, the first of them lowest in the word: pairs are put together, then fours. */
static inline uint64_t eight_digits(uint64_t word) {
    word = (word & 0x0f0f0f0f0f0f0f0fu) * ((10 << 8) + 1) >> 8;
    word = (word & 0x00ff00ff00ff00ffu) * ((100 << 16) + 1) >> 16;
    return (word & 0x0000ffff0000ffffu) * (((uint64_t)10000 << 32) + 1) >> 32;
}

/* Whether a time ends as writers of traces have it: five to eight bytes before `end` are digits, a point and three
 * decimals. Then it is in `ns`. The eight bytes before `end` can be read. */
static inline bool short_nanoseconds(const uint8_t *end, size_t size, uint64_t *ns) {
    const uint64_t word = load8(end - 8), whole = word << 32 >> 24, decimals = word & 0xffffff0000000000u;
    const uint64_t zeros = 0x3030303030303030u, absent = ((uint64_t)1 << 8 * (9 - size)) - 1;
    const uint64_t digits = ((whole | decimals) & ~absent) | (zeros & absent);
    *ns = eight_digits(digits);
    return (word >> 32 & 0xff) == '.' && are_digits(digits);
}

/* Microseconds to ns; UNUSABLE for what is missing, negative, no number or beyond MAX_NS. Here are up to 16 digits and
 * 3 decimals, which fit 64 bits and are all that writers of traces write. */
static inline int64_t nanoseconds(struct span value) {
    const struct span literal = without_quotes(value);
    const uint8_t *at = literal.at, *const end = at + literal.size;
    uint64_t number = 0, rest;
    int digits = 0;
    if (HAS_ORDERED_WORDS && end - at >= 8 && are_digits(load8(at))) {
        number = eight_digits(load8(at));
        digits = 8;
        at += 8;
    }
    for (; end - at > 8 && is_digit(*at) && digits < 12; at++, digits++) {
        number = number * 10 + (uint64_t)(*at - '0');
    }
    if (HAS_ORDERED_WORDS && end - at >= 5 && end - at <= 8 && short_nanoseconds(end, (size_t)(end - at), &rest)) {
        static const uint64_t powers[] = {10000, 100000, 1000000, 10000000};
        number = number * powers[end - at - 5] + rest;
        return number <= MAX_NS ? (int64_t)number : UNUSABLE;
    }
    for (; at < end && is_digit(*at) && digits < 16; at++, digits++) {
        number = number * 10 + (uint64_t)(*at - '0');
    }
    const bool has_point = at < end && *at == '.';
    at += has_point;
    for (int place = 0; place < 3; place++) {
        const bool has_digit = has_point && at < end && is_digit(*at);
        number = number * 10 + (has_digit ? (uint64_t)(*at - '0') : 0);
        at += has_digit;
    }
    if (at < end || !digits) {
        return any_nanoseconds(literal);
    }
    return number <= MAX_NS ? (int64_t)number : UNUSABLE;
}

/* A plain integer of 64 bits, bare or as text; false for anything else, "1.0" or "007" among it. */
static inline bool integer(struct span value, int64_t *number) {
    const struct span literal = without_quotes(value);
    const uint8_t *at = literal.at, *const end = at + literal.size;
    const bool is_negative = at < end && *at == '-';
    at += is_negative;
    if (at == end || end - at > 19 || (*at == '0' && end - at > 1)) {
        return false;
    }
    uint64_t magnitude = 0;
    for (; at < end; at++) {
        if (!is_digit(*at)) {
            return false;
        }
        magnitude = magnitude * 10 + (uint64_t)(*at - '0');
    }
    if (magnitude > INT64_MAX) {
        return false;
    }
    *number = is_negative ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

#endif
