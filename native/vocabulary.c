#include "vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* Strings made to collide cost a walk from slot to slot: longer ones than chance ever makes (about 80 in a full
 * vocabulary) end it, so that no bytes can make reading slow. */
enum { MAX_PROBES = 256 };

enum { FIRST_SLOTS = 1 << 10, FIRST_STRINGS = 1 << 9, FIRST_BYTES = 1 << 14 };

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

/* Eight bytes at a time; the last eight overlap those before. Long strings first make four sums, side by side. */
static uint32_t hash_of(const uint8_t *at, size_t size) {
    uint64_t hash = size, word = 0;
    if (size > 64) {
        uint64_t sums[4] = {size, 1, 2, 3}, words[4];
        for (; size > 32; size -= 32, at += 32) {
            memcpy(words, at, sizeof words);
            for (int lane = 0; lane < 4; lane++) {
                sums[lane] = mix(sums[lane], words[lane]);
            }
        }
        hash = mix(mix(mix(sums[0], sums[1]), sums[2]), sums[3]);
    }
    for (size_t left = size; left > 8; left -= 8, at += 8) {
        memcpy(&word, at, 8);
        hash = mix(hash, word);
    }
    if (size >= 8) {
        memcpy(&word, at + (size - 1) % 8 + 1 - 8, 8);
    } else if (size) {
        memcpy(&word, at, size);
    }
    return (uint32_t)mix(hash, word);
}

static uint64_t start_of(const struct vocabulary *vocabulary, uint32_t number) {
    return number ? vocabulary->ends[number - 1] : 0;
}

static bool equals(const struct vocabulary *vocabulary, uint32_t number, const uint8_t *at, size_t size) {
    const uint64_t start = start_of(vocabulary, number);
    return vocabulary->ends[number] - start == size && (!size || !memcmp(vocabulary->bytes + start, at, size));
}

/* The slot that holds the string, or the free one where it belongs; NULL after MAX_PROBES others. */
static struct slot *find(const struct vocabulary *vocabulary, uint32_t hash, const uint8_t *at, size_t size) {
    for (uint32_t probe = 0; probe < MAX_PROBES; probe++) {
        struct slot *slot = &vocabulary->slots[(hash + probe) & vocabulary->mask];
        if (!slot->number || (slot->hash == hash && equals(vocabulary, slot->number - 1, at, size))) {
            return slot;
        }
    }
    return NULL;
}

static bool grow_slots(struct vocabulary *vocabulary) {
    const uint32_t old = vocabulary->slots ? vocabulary->mask + 1 : 0, now = old ? 2 * old : FIRST_SLOTS;
    struct slot *slots = calloc(now, sizeof *slots);
    if (!slots) {
        return false;
    }
    for (uint32_t index = 0; index < old; index++) {
        const struct slot slot = vocabulary->slots[index];
        uint32_t free_slot = slot.hash & (now - 1);
        while (slot.number && slots[free_slot].number) {
            free_slot = (free_slot + 1) & (now - 1);
        }
        if (slot.number) {
            slots[free_slot] = slot;
        }
    }
    free(vocabulary->slots);
    vocabulary->slots = slots;
    vocabulary->mask = now - 1;
    return true;
}

/* Room for one more string. */
static bool grow_strings(struct vocabulary *vocabulary) {
    const size_t count = vocabulary->count ? 2 * vocabulary->count_capacity : FIRST_STRINGS;
    uint64_t *ends = realloc(vocabulary->ends, count * sizeof *ends);
    if (!ends) {
        return false;
    }
    vocabulary->ends = ends;
    uint64_t *positions = realloc(vocabulary->positions, count * sizeof *positions);
    if (!positions) {
        return false;
    }
    vocabulary->positions = positions;
    vocabulary->count_capacity = count;
    return true;
}

/* Room for `needed` bytes, and soon for more. */
static bool grow_bytes(struct vocabulary *vocabulary, size_t needed) {
    const size_t capacity = needed < FIRST_BYTES ? FIRST_BYTES : 2 * needed;
    uint8_t *bytes = realloc(vocabulary->bytes, capacity);
    if (!bytes) {
        return false;
    }
    vocabulary->bytes = bytes;
    vocabulary->bytes_capacity = capacity;
    return true;
}

static int32_t add(struct vocabulary *vocabulary, struct slot *slot, uint32_t hash, const uint8_t *at, size_t size,
                   uint64_t position) {
    const size_t start = (size_t)start_of(vocabulary, vocabulary->count);
    if (vocabulary->count >= vocabulary->max_strings || size > MAX_STRING_BYTES - start) {
        return FULL;
    }
    if ((vocabulary->count == vocabulary->count_capacity && !grow_strings(vocabulary)) ||
        (start + size > vocabulary->bytes_capacity && !grow_bytes(vocabulary, start + size))) {
        vocabulary->no_memory = true;
        return FULL;
    }
    if (size) {
        memcpy(vocabulary->bytes + start, at, size);
    }
    vocabulary->ends[vocabulary->count] = start + size;
    vocabulary->positions[vocabulary->count] = position;
    *slot = (struct slot){hash, ++vocabulary->count};
    return (int32_t)vocabulary->count - 1;
}

size_t vocabulary_begins(const struct vocabulary *vocabulary, uint32_t number, const uint8_t *at, const uint8_t *end) {
    if (number >= vocabulary->count) {
        return 0;
    }
    const uint64_t start = start_of(vocabulary, number);
    const size_t size = (size_t)(vocabulary->ends[number] - start);
    return size <= (size_t)(end - at) && !memcmp(vocabulary->bytes + start, at, size) ? size : 0;
}

int32_t vocabulary_find(const struct vocabulary *vocabulary, const uint8_t *at, size_t size) {
    const struct slot *slot = vocabulary->count ? find(vocabulary, hash_of(at, size), at, size) : NULL;
    return slot && slot->number ? (int32_t)slot->number - 1 : NEW;
}

int32_t vocabulary_intern(struct vocabulary *vocabulary, const uint8_t *at, size_t size, uint64_t position) {
    if (vocabulary->count && equals(vocabulary, vocabulary->last, at, size)) {
        return (int32_t)vocabulary->last;
    }
    if (2 * vocabulary->count >= vocabulary->mask && !grow_slots(vocabulary)) {
        vocabulary->no_memory = true;
        return FULL;
    }
    const uint32_t hash = hash_of(at, size);
    struct slot *slot = find(vocabulary, hash, at, size);
    if (!slot) {
        return FULL;
    }
    const int32_t number = slot->number ? (int32_t)slot->number - 1 : add(vocabulary, slot, hash, at, size, position);
    vocabulary->last = number == FULL ? vocabulary->last : (uint32_t)number;
    return number;
}

void vocabulary_free(struct vocabulary *vocabulary) {
    free(vocabulary->bytes);
    free(vocabulary->ends);
    free(vocabulary->positions);
    free(vocabulary->slots);
}
