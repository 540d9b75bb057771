/* Interning: byte strings to small numbers, each string kept once, with the position where it was first seen. */
#ifndef DDP_DOCTOR_VOCABULARY_H
#define DDP_DOCTOR_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Beyond it a vocabulary is full, as it is with `max_strings`. The largest file seen has 2,115 names of 200 KB. */
enum { MAX_STRING_BYTES = 1 << 26 };

enum { FULL = -1, NEW = -1 };

struct slot {
    uint32_t hash;
    uint32_t number; /* plus one; zero is free */
};

/* Costs up to 48 bytes for each string beside its own: a full one of 2 ** 20 strings, 112 MiB. */
struct vocabulary {
    uint32_t max_strings; /* set by the owner, who clears the rest */
    uint32_t count;
    uint32_t last; /* the number asked for before: events often repeat it */
    uint8_t *bytes;      /* of all strings, one behind the other */
    uint64_t *ends;      /* of each string in `bytes` */
    uint64_t *positions; /* of each string in the trace's text */
    size_t bytes_capacity, count_capacity;
    struct slot *slots;
    uint32_t mask; /* slots, a power of two, less one */
    bool no_memory;
};

/* The size of the string of that number if `at` begins with it, before `end`; else 0. */
size_t vocabulary_begins(const struct vocabulary *vocabulary, uint32_t number, const uint8_t *at, const uint8_t *end);
/* The number of a string that is known; else NEW. */
int32_t vocabulary_find(const struct vocabulary *vocabulary, const uint8_t *at, size_t size);
/* The number of a string, new or known; FULL if it is new and there is no room, or none could be had. */
int32_t vocabulary_intern(struct vocabulary *vocabulary, const uint8_t *at, size_t size, uint64_t position);
void vocabulary_free(struct vocabulary *vocabulary);

#endif
