/* From top to bottom: what is kept, memory, losses, one event's members, its row, the way back after an error, the
 * list, blocks. `scanner.h` says what is supported.
 *
 * Reading an event only notes where its values stand, and whether those that are wanted are JSON (numbers: later, digit
 * by digit); what they mean is asked when it is whole, and only of those that its category has. Nothing is written to a column before. Any error, be it a character or the
 * end of the block, comes back as a NULL to `scan`, which asks `resume` where to go on.
 */
#include "scanner.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "event.h"
#include "json.h"
#include "numbers.h"
#include "vocabulary.h"

static const uint64_t MEMBERS = BIT(DEVICE) - 1;
static const uint64_t ALL_ARGUMENTS = BIT(OTHER) - BIT(DEVICE);
static const uint64_t MEMORY_ARGUMENTS = BIT(SOURCE) - BIT(CHANGE);

/* -- what is kept of the trace */

enum { UNKNOWN_CATEGORY = 0, COMMUNICATION_NAME = 0, MEMORY_NAME = 1, DROPPED = -1, MISSING = -1 };

enum { MAX_CATEGORIES = 1 << 10 };

enum { MAX_COLUMNS = 15, FIRST_ROWS = 1 << 12 };

struct table {
    size_t rows, capacity;
    uint8_t *columns[MAX_COLUMNS];
};

/* Bytes of each column's numbers; 0 behind the last. */
static const uint8_t WIDTHS[SCANNER_TABLES][MAX_COLUMNS + 1] = {
    [SCANNER_EVENTS] = {4, 1, 8, 8, 4, 4, 8, 8, 8, 4, 4, 8, 4, 4, 4, 0},
    [SCANNER_COMMS] = {8, 4, 4, 4, 8, 8, 8, 4, 8, 8, 8, 4, 4, 8, 0},
    [SCANNER_MEMORY] = {8, 4, 4, 8, 8, 8, 8, 4, 0},
    [SCANNER_FRAMES] = {4, 8, 8, 4, 0},
    [SCANNER_ODDITIES] = {4, 4, 8, 4, 8, 0},
};

struct buffer {
    uint8_t *bytes;
    size_t size, capacity;
};

#if defined(__GNUC__)
#define COLD __attribute__((noinline, cold))
#else
#define COLD
#endif

enum { MAX_GAP = 80, MAX_CONSTANTS = 4, GAPS = 256, WAYS = 2, KINDS = SCANNER_FRAME + 2, START = KINDS };

/* What stands where a member might: the end of the object. */
enum { CLOSE = VALUES };

/* Text with a key, from behind a "{" or a value to where the key's value begins, or to behind a "}". Events of a kind
 * repeat it: what came last time is compared before anything is read. Members before the last whose values repeat too,
 * phase, category and thread, are part of it, and were read when it was new. `next` is no more than a guess: slots are
 * overwritten freely. */
struct gap {
    uint8_t text[MAX_GAP];
    uint64_t mask[2]; /* of its first sixteen bytes, if it has as many */
    uint8_t size;     /* 0: not used */
    uint8_t value;    /* of its last key, or CLOSE */
    bool is_argument;
    uint8_t constants; /* how many members there are before the last, and where in the text their values stand */
    struct {
        uint8_t value, start, end;
    } constant[MAX_CONSTANTS];
    int32_t category; /* as in `struct event`, if one of them says it; else -1 */
    bool has_category;
    uint8_t next[KINDS + 1][WAYS]; /* by `event.kind` */
};

enum { GUESSES = 1 << 12 };

/* What came last time in the same place: names follow each other as they did in the step before, and so do the shapes
 * of what has the same name. A guess that is right is found by one comparison; `last` are the numbers before. */
struct foresight {
    uint32_t guesses[GUESSES];
    uint32_t last[2];
};

struct scanner {
    enum scanner_status status;
    uint64_t position; /* of the first byte that is not done with */
    uint64_t max_event_bytes, seen;
    /* Text that is not done with: mostly the beginning of an event. */
    struct buffer carry;
    /* How long `carry` has to be before another look is worth it: twice as much each time, or an event of many blocks
     * would be read once for each. */
    size_t wanted;
    /* After a skip, until an event is seen: what comes may be the inside of the broken one. */
    bool is_lost;
    struct table tables[SCANNER_TABLES];
    struct vocabulary vocabularies[SCANNER_VOCABULARIES];
    struct foresight names, shapes, types, inputs;
    struct buffer thread; /* one key of SCANNER_THREADS: the last event's */
    int32_t thread_number;
    struct gap gaps[GAPS]; /* the first is never used: what nothing is known of points to it */
    uint8_t first_gap;     /* of the last event: what the next one's is guessed from */
    int8_t codes[MAX_CATEGORIES];
    uint64_t dropped[MAX_CATEGORIES];
    struct scanner_loss losses[LOSS_KINDS];
};

/* -- memory */

/* Room for `more` bytes at the buffer's end. */
static bool reserve(struct scanner *scanner, struct buffer *buffer, size_t more) {
    if (more > buffer->capacity - buffer->size) {
        const size_t capacity = 2 * (buffer->size + more);
        uint8_t *bytes = realloc(buffer->bytes, capacity);
        if (!bytes) {
            scanner->status = SCANNER_NO_MEMORY;
            return false;
        }
        buffer->bytes = bytes;
        buffer->capacity = capacity;
    }
    return true;
}

static bool append(struct scanner *scanner, struct buffer *buffer, const uint8_t *bytes, size_t size) {
    if (!reserve(scanner, buffer, size)) {
        return false;
    }
    if (size) {
        memcpy(buffer->bytes + buffer->size, bytes, size);
    }
    buffer->size += size;
    return true;
}

static void drop_front(struct buffer *buffer, size_t size) {
    if (size) {
        buffer->size -= size;
        memmove(buffer->bytes, buffer->bytes + size, buffer->size);
    }
}

/* A new row, of which nothing is set; `rows` counts it. */
static bool add_row(struct scanner *scanner, int number) {
    struct table *table = &scanner->tables[number];
    if (table->rows == table->capacity) {
        const size_t capacity = table->capacity ? table->capacity * 2 : FIRST_ROWS;
        for (int column = 0; WIDTHS[number][column]; column++) {
            uint8_t *larger = realloc(table->columns[column], capacity * WIDTHS[number][column]);
            if (!larger) {
                scanner->status = SCANNER_NO_MEMORY;
                return false;
            }
            table->columns[column] = larger;
        }
        table->capacity = capacity;
    }
    table->rows++;
    return true;
}

/* Set a cell of the last row. */
static void set(struct scanner *scanner, int number, int column, int64_t value) {
    const struct table *table = &scanner->tables[number];
    const uint8_t width = WIDTHS[number][column];
    uint8_t *const cell = table->columns[column] + (table->rows - 1) * width;
    const int32_t narrow = (int32_t)value;
    switch (width) {
    case 1: *cell = (uint8_t)value; break;
    case 4: memcpy(cell, &narrow, sizeof narrow); break;
    default: memcpy(cell, &value, sizeof value);
    }
}

static int32_t intern(struct scanner *scanner, int vocabulary, struct span text, uint64_t position) {
    const int32_t number = vocabulary_intern(&scanner->vocabularies[vocabulary], text.at, text.size, position);
    if (scanner->vocabularies[vocabulary].no_memory) {
        scanner->status = SCANNER_NO_MEMORY;
    }
    return number;
}

/* -- losses */

static struct scanner_loss *lose(struct scanner *scanner, int kind, uint64_t position, const char *detail) {
    struct scanner_loss *loss = &scanner->losses[kind];
    if (!loss->count++) {
        loss->position = position;
        loss->detail = detail;
    }
    return loss;
}

static void excerpt(char *target, struct span value) {
    const size_t size = value.size < SCANNER_EXCERPT ? value.size : SCANNER_EXCERPT;
    if (size) {
        memcpy(target, value.at, size);
    }
}

/* An integer of an event as it would be spelled. */
struct spelled {
    char text[32];
};

static struct span spell(const struct event *event, enum value value, struct spelled *spelled) {
    if (!(event->integers >> value & 1)) {
        return get(event, value);
    }
    const int64_t number = event->numbers[value];
    const bool is_time = value == TS || value == DUR;
    const int size = is_time ? snprintf(spelled->text, sizeof spelled->text, "%" PRId64 ".%03d", number / 1000,
                                        (int)(number % 1000))
                             : snprintf(spelled->text, sizeof spelled->text, "%" PRId64, number);
    return (struct span){(const uint8_t *)spelled->text, (size_t)size};
}

static void lose_for_its_times(struct scanner *scanner, const struct event *event) {
    struct scanner_loss *loss = lose(scanner, LOSS_TIMES, event->position, "");
    if (loss->count == 1) {
        struct spelled start, duration;
        excerpt(loss->start, spell(event, TS, &start));
        excerpt(loss->duration, spell(event, DUR, &duration));
    }
}

/* -- reading one event */

static enum value member_of(struct span key) {
    switch (key.size) {
    case 2: return IS(key, "ph") ? PH : IS(key, "ts") ? TS : OTHER;
    case 3:
        return IS(key, "cat") ? CAT : IS(key, "pid") ? PID : IS(key, "tid") ? TID : IS(key, "dur") ? DUR : OTHER;
    case 4: return IS(key, "name") ? NAME : IS(key, "args") ? ARGS : OTHER;
    default: return OTHER;
    }
}

static inline uint64_t difference(const struct gap *gap, const uint8_t *at, size_t where) {
    return load8(at + where) ^ load8(gap->text + where);
}

/* Whether that gap is at `at`, where there are more than MAX_GAP bytes, with its value behind it. */
static inline bool is_gap(const struct gap *gap, const uint8_t *at, bool is_argument) {
    const size_t size = gap->size;
    uint64_t differences = (difference(gap, at, 0) & gap->mask[0]) | (difference(gap, at, 8) & gap->mask[1]);
    if (differences || gap->is_argument != is_argument || !size) {
        return false;
    }
    if (size > 16) {
        differences = difference(gap, at, size - 16) | difference(gap, at, size - 8);
        for (size_t middle = 16; middle + 16 < size; middle += 8) {
            differences |= difference(gap, at, middle);
        }
    }
    return !differences && (gap->value == CLOSE || !is_space(at[size]));
}

/* From behind a "{" or a value, to where the next member's value begins, or to behind a "}". */
static const uint8_t *member_end(struct reading *reading, const uint8_t *at, bool is_first, bool is_argument,
                                 uint8_t *value) {
    struct span key;
    at = space_end(reading, at);
    if (at && *at == '}') {
        *value = CLOSE;
        return at + 1;
    }
    if (at && !is_first) {
        at = *at == ',' ? space_end(reading, at + 1) : refuse(reading, "expecting ',' delimiter");
    }
    const uint8_t *end = at ? key_end(reading, at, &key) : NULL;
    if (end) {
        *value = (uint8_t)(is_argument ? argument_of(key) : member_of(key));
    }
    return end;
}

/* Take the members before the last of a gap. */
static inline void take_constants(const struct scanner *scanner, struct event *event, const struct gap *gap,
                                  const uint8_t *at) {
    for (int number = 0; number < gap->constants; number++) {
        put(event, gap->constant[number].value, at + gap->constant[number].start, at + gap->constant[number].end);
    }
    if (gap->category >= 0) {
        event->category = gap->category;
        event->has_category = gap->has_category;
        event->kind = (uint8_t)(scanner->codes[gap->category] + 1);
    }
}

static void set_category(struct scanner *scanner, struct event *event, struct span name) {
    const int32_t number = intern(scanner, SCANNER_CATEGORIES, name, event->position);
    event->category = number == FULL ? UNKNOWN_CATEGORY : number;
    event->has_category = name.size > sizeof("\"\"") - 1;
    event->kind = (uint8_t)(scanner->codes[event->category] + 1);
}

static bool seldom_changes(enum value member) {
    return member == PH || member == CAT || member == PID || member == TID;
}

/* Read a gap, all but its text, and return its end. One that would be too long has no size. */
static const uint8_t *read_gap(struct scanner *scanner, struct event *event, struct reading *reading,
                               const uint8_t *at, bool is_first, bool is_argument, struct gap *gap) {
    const uint8_t *end = member_end(reading, at, is_first, is_argument, &gap->value);
    gap->is_argument = is_argument;
    gap->category = -1;
    while (end && end - at <= MAX_GAP) {
        gap->size = (uint8_t)(end - at);
        const uint8_t value = gap->value;
        if (is_argument || !seldom_changes(value) || gap->constants == MAX_CONSTANTS) {
            break;
        }
        const uint8_t *stop = value_end(reading, end);
        const uint8_t *next = stop ? member_end(reading, stop, false, false, &gap->value) : NULL;
        if (!next || next - at > MAX_GAP) {
            gap->value = value;
            return next ? end : NULL;
        }
        if (value == CAT && *end == '"') {
            set_category(scanner, event, (struct span){end, (size_t)(stop - end)});
            gap->category = event->category;
            gap->has_category = event->has_category;
        }
        gap->constant[gap->constants].value = value;
        gap->constant[gap->constants].start = (uint8_t)(end - at);
        gap->constant[gap->constants++].end = (uint8_t)(stop - at);
        end = next;
    }
    return end;
}

/* The end of a gap that was foreseen; NULL if none of them is there. */
static inline const uint8_t *gap_end(struct scanner *scanner, struct event *event, struct reading *reading,
                                     const uint8_t *at, bool is_argument, uint8_t *value) {
    const uint8_t *next = scanner->gaps[event->gap].next[event->kind];
    if (reading->end - at <= MAX_GAP) {
        return NULL;
    }
    for (int way = 0; way < WAYS; way++) {
        const struct gap *gap = &scanner->gaps[next[way]];
        if (is_gap(gap, at, is_argument)) {
            event->gap = next[way];
            *value = gap->value;
            if (!is_argument) {
                take_constants(scanner, event, gap, at);
            }
            return at + gap->size;
        }
    }
    return NULL;
}

/* The same for one that was not foreseen: read it, and foresee it. */
COLD static const uint8_t *new_gap_end(struct scanner *scanner, struct event *event, struct reading *reading,
                                       const uint8_t *at, bool is_first, bool is_argument, uint8_t *value) {
    struct gap gap;
    memset(&gap, 0, sizeof gap);
    uint8_t *next = scanner->gaps[event->gap].next[event->kind];
    const uint8_t *end = read_gap(scanner, event, reading, at, is_first, is_argument, &gap);
    if (!end) {
        return NULL;
    }
    take_constants(scanner, event, &gap, at);
    *value = gap.value;
    if (!gap.size) {
        return end;
    }
    const ptrdiff_t left = reading->end - at;
    uint32_t hash = is_argument;
    for (const uint8_t *byte = at; byte < end; byte++) {
        hash = (hash ^ *byte) * 0x01000193u;
    }
    uint8_t slot = (uint8_t)(1 + (hash >> 16) % (GAPS - 1));
    for (int probe = 0; probe < 8 && scanner->gaps[slot].size &&
                        (left <= MAX_GAP || !is_gap(&scanner->gaps[slot], at, is_argument));
         probe++) {
        slot = (uint8_t)(1 + slot % (GAPS - 1));
    }
    memcpy(gap.text, at, gap.size);
    memset(gap.mask, 0xff, gap.size < sizeof gap.mask ? gap.size : sizeof gap.mask);
    memcpy(gap.next, scanner->gaps[slot].next, sizeof gap.next);
    scanner->gaps[slot] = gap;
    memmove(next + 1, next, WAYS - 1);
    next[0] = event->gap = slot;
    return end;
}

typedef const uint8_t *take_member(struct scanner *, struct event *, struct reading *, enum value, const uint8_t *);

/* An object, whose members `take` takes: from where the value begins to where it ends. */
static inline const uint8_t *object_end(struct scanner *scanner, struct event *event, struct reading *reading,
                                        const uint8_t *at, bool is_argument, take_member *take) {
    uint8_t value;
    for (bool is_first = true; at; is_first = false) {
        at += is_first;
        const uint8_t *end = gap_end(scanner, event, reading, at, is_argument, &value);
        if (!end) {
            end = new_gap_end(scanner, event, reading, at, is_first, is_argument, &value);
        }
        if (is_first && !is_argument) {
            event->kind = event->kind == START ? 0 : event->kind;
            scanner->first_gap = event->gap;
        }
        if (!end || value == CLOSE) {
            return end;
        }
        at = take(scanner, event, reading, value, end);
    }
    return NULL;
}

/* The end of a text or list that may have been seen before, and then its number; `context` is what it may depend on
 * beside those before it. What has a number is JSON. */
static inline const uint8_t *known_end(const struct vocabulary *vocabulary, struct foresight *foresight,
                                       uint32_t context, struct reading *reading, const uint8_t *at,
                                       struct known *known) {
    const uint32_t hash = (context * 0x9E3779B1u ^ foresight->last[0]) * 0x85EBCA6Bu ^ foresight->last[1] * 0xC2B2AE35u;
    uint32_t *guess = &foresight->guesses[(hash ^ hash >> 16) % GUESSES];
    known->at = NULL;
    if (*at != '"' && !is_container(*at)) { /* a number's beginning may be another number */
        return value_end(reading, at);
    }
    const size_t size = vocabulary_begins(vocabulary, *guess, at, reading->end);
    const uint8_t *end = size ? at + size : rough_end(reading, at);
    const int32_t number = size ? (int32_t)*guess : end ? vocabulary_find(vocabulary, at, (size_t)(end - at)) : NEW;
    if (number == NEW) {
        return value_end(reading, at);
    }
    *known = (struct known){at, number};
    *guess = (uint32_t)number;
    foresight->last[1] = foresight->last[0];
    foresight->last[0] = (uint32_t)number;
    return end;
}

/* The same of a value in SCANNER_SHAPES. */
static inline const uint8_t *shape_end(struct scanner *scanner, const struct event *event, struct reading *reading,
                                       const uint8_t *at, struct foresight *foresight, struct known *known) {
    return known_end(&scanner->vocabularies[SCANNER_SHAPES], foresight, (uint32_t)event->name.number, reading, at, known);
}

static const uint8_t *take_argument(struct scanner *scanner, struct event *event, struct reading *reading,
                                    enum value argument, const uint8_t *at) {
    const bool is_wanted = event->wanted >> argument & 1;
    const uint8_t *end;
    if (is_wanted && (argument == INPUT_DIMS || argument == GRID)) {
        end = shape_end(scanner, event, reading, at, &scanner->shapes, &event->shape);
    } else if (is_wanted && (argument == INPUT_TYPE || argument == AUTOGRAD_PHASE)) {
        end = shape_end(scanner, event, reading, at, &scanner->types, &event->types);
    } else if (is_wanted && (argument == CONCRETE_INPUTS || argument == ANNOTATION)) {
        end = shape_end(scanner, event, reading, at, &scanner->inputs, &event->inputs);
    } else {
        end = !is_wanted || NUMBERS >> argument & 1 ? rough_end(reading, at) : value_end(reading, at);
    }
    if (end && is_wanted) {
        put(event, argument, at, end);
    }
    return end;
}

/* Whether an event has a name, and it is one of those that `scanner_new` was given. */
static bool is_named(const struct scanner *scanner, const struct event *event, int number) {
    const struct vocabulary *texts = &scanner->vocabularies[SCANNER_TEXTS];
    const uint64_t start = number ? texts->ends[number - 1] : 0;
    const struct span name = get(event, NAME);
    return name.size == texts->ends[number] - start && !memcmp(name.at, texts->bytes + start, name.size);
}

static bool is_dropped(const struct scanner *scanner, const struct event *event) {
    return scanner->codes[event->category] == DROPPED;
}

static bool is_frame(const struct scanner *scanner, const struct event *event) {
    return scanner->codes[event->category] == SCANNER_FRAME;
}

/* Those arguments that an event may want, by what is known of it. */
static uint64_t wanted_arguments(const struct scanner *scanner, const struct event *event) {
    const bool is_known = event->has_category && (event->present >> NAME & 1 || is_frame(scanner, event));
    if (!is_known || (is_named(scanner, event, COMMUNICATION_NAME) && !is_frame(scanner, event))) {
        return ALL_ARGUMENTS;
    }
    switch (scanner->codes[event->category]) {
    case SCANNER_OP:
        return BIT(INPUT_DIMS) | BIT(INPUT_TYPE) | BIT(CONCRETE_INPUTS) | BIT(SEQUENCE_NUMBER) | BIT(KERNEL_FILE);
    case SCANNER_RUNTIME: return BIT(CORRELATION);
    case SCANNER_INSTANT: return MEMORY_ARGUMENTS;
    case SCANNER_FRAME: return 0;
    default: return ALL_ARGUMENTS;
    }
}

/* A category or a name that comes behind the arguments may want others of them: read them again. */
COLD static void reread_arguments(struct scanner *scanner, struct event *event) {
    const struct span args = get(event, ARGS);
    struct reading reading = {args.at + args.size, NULL};
    event->wanted = ALL_ARGUMENTS;
    if (args.size && *args.at == '{') {
        object_end(scanner, event, &reading, args.at, true, take_argument);
    }
}

static const uint8_t *take_event_member(struct scanner *scanner, struct event *event, struct reading *reading,
                                        enum value member, const uint8_t *at) {
    const uint8_t *end;
    if (member == ARGS) {
        event->present &= MEMBERS;
    }
    const bool is_passed_over = event->has_category && (is_dropped(scanner, event) || is_frame(scanner, event));
    if (member == ARGS && *at == '{' && !is_passed_over) {
        event->wanted = wanted_arguments(scanner, event);
        end = object_end(scanner, event, reading, at, true, take_argument);
    } else if (member == NAME && !is_passed_over) {
        end = known_end(&scanner->vocabularies[SCANNER_TEXTS], &scanner->names, event->kind, reading, at, &event->name);
    } else {
        end = (BIT(OTHER) | NUMBERS) >> member & 1 ? rough_end(reading, at) : value_end(reading, at);
    }
    if (end) {
        put(event, member, at, end);
        if (member == CAT && *at == '"') {
            set_category(scanner, event, get(event, CAT));
        }
    }
    return end;
}

/* -- from an event to a row */

static struct span text_or_empty(struct span value) {
    const struct span empty = {(const uint8_t *)"\"\"", 2};
    return value.size ? value : empty;
}

static struct span value_or_null(struct span value) {
    const struct span null = {(const uint8_t *)"null", 4};
    return value.size ? value : null;
}

static bool is_or_lacks_text(struct span value) {
    return !value.size || *value.at == '"';
}

/* By the first character: "n" begins null, "N" and "I" the numbers that are none. */
static bool is_or_lacks_number_or_text(struct span value) {
    return is_or_lacks_text(value) || is_digit(*value.at) || strchr("-nNI", *value.at);
}

static const char *wrong_type(const struct event *event) {
    if (!is_or_lacks_text(get(event, PH)) || !is_or_lacks_text(get(event, CAT)) ||
        !is_or_lacks_text(get(event, NAME))) {
        return "a phase, category or name that is no text";
    }
    if (!is_or_lacks_number_or_text(get(event, PID)) || !is_or_lacks_number_or_text(get(event, TID))) {
        return "a process or thread that is neither number nor text";
    }
    return NULL;
}

/* A time in ns, or UNUSABLE. */
static inline int64_t time_of(const struct event *event, enum value value) {
    if (event->integers >> value & 1) {
        const int64_t time = event->numbers[value];
        return time >= 0 && (uint64_t)time <= MAX_NS ? time : UNUSABLE;
    }
    return nanoseconds(value_or_null(get(event, value)));
}

static int32_t thread_of(struct scanner *scanner, const struct event *event) {
    if (event->thread.at) {
        if (*event->thread_number == NEW) {
            *event->thread_number = intern(scanner, SCANNER_THREADS, event->thread, event->position);
        }
        return *event->thread_number;
    }
    const struct span pid = value_or_null(get(event, PID)), tid = value_or_null(get(event, TID));
    struct buffer *key = &scanner->thread;
    if (key->size == pid.size + 1 + tid.size && key->bytes[pid.size] == ',' && !memcmp(key->bytes, pid.at, pid.size) &&
        !memcmp(key->bytes + pid.size + 1, tid.at, tid.size)) {
        return scanner->thread_number;
    }
    key->size = 0;
    if (!append(scanner, key, pid.at, pid.size) || !append(scanner, key, (const uint8_t *)",", 1) ||
        !append(scanner, key, tid.at, tid.size)) {
        return FULL;
    }
    scanner->thread_number = intern(scanner, SCANNER_THREADS, (struct span){key->bytes, key->size}, event->position);
    return scanner->thread_number;
}

/* A value that is not plainly an integer of its column, noted for the caller to look at. */
COLD static void add_oddity(struct scanner *scanner, const struct event *event, int table, int column,
                            struct span value) {
    const int32_t odd = intern(scanner, SCANNER_VALUES, value, event->position);
    if (odd == FULL) {
        lose(scanner, LOSS_ARGUMENTS, event->position, "more different values than can be kept");
    } else if (add_row(scanner, SCANNER_ODDITIES)) {
        set(scanner, SCANNER_ODDITIES, ODDITY_TABLE, table);
        set(scanner, SCANNER_ODDITIES, ODDITY_COLUMN, column);
        set(scanner, SCANNER_ODDITIES, ODDITY_ROW, (int64_t)scanner->tables[table].rows - 1);
        set(scanner, SCANNER_ODDITIES, ODDITY_VALUE, odd);
        set(scanner, SCANNER_ODDITIES, ODDITY_POSITION, (int64_t)event->position);
    }
}

static inline bool fits(int table, int column, int64_t number) {
    return WIDTHS[table][column] == 8 || (number >= INT32_MIN && number <= INT32_MAX);
}

/* A cell of the last row that must be an integer, MISSING where there is none. */
static inline void set_spelled_integer(struct scanner *scanner, const struct event *event, int table, int column,
                                       struct span value) {
    int64_t number = MISSING;
    const bool is_good = !value.size || (integer(value, &number) && fits(table, column, number));
    set(scanner, table, column, is_good ? number : MISSING);
    if (!is_good) {
        add_oddity(scanner, event, table, column, value);
    }
}

static inline void set_integer(struct scanner *scanner, const struct event *event, int table, int column,
                               enum value value) {
    if (!(event->integers >> value & 1)) {
        set_spelled_integer(scanner, event, table, column, get(event, value));
    } else if (fits(table, column, event->numbers[value])) {
        set(scanner, table, column, event->numbers[value]);
    } else {
        struct spelled spelled;
        set(scanner, table, column, MISSING);
        add_oddity(scanner, event, table, column, spell(event, value, &spelled));
    }
}

/* A value's number in a vocabulary, which may be known. */
static inline int32_t number_of(struct scanner *scanner, const struct event *event, int vocabulary, struct span value,
                                const struct known *known) {
    return known->at == value.at ? known->number : intern(scanner, vocabulary, value, event->position);
}

/* A cell of the last row that is a value's number in a vocabulary, which `known` may have. */
static void set_number(struct scanner *scanner, const struct event *event, int table, int column, int vocabulary,
                       struct span value, const struct known *known) {
    const bool has_value = value.size && !(table == SCANNER_COMMS && IS(value, "null"));
    const int32_t number = has_value ? number_of(scanner, event, vocabulary, value, known) : MISSING;
    if (has_value && number == FULL) {
        lose(scanner, LOSS_ARGUMENTS, event->position, "more different texts than can be kept");
    }
    set(scanner, table, column, number);
}

/* The same of a value of communication. */
static void set_word(struct scanner *scanner, const struct event *event, int table, int column, int vocabulary,
                     struct span value) {
    static const struct known none = {NULL, NEW};
    set_number(scanner, event, table, column, vocabulary, value, &none);
}

/* The second of "Concrete Inputs", if it is text: Megatron-era traces carry the sequence number there. */
static struct span second_input(struct span inputs) {
    const struct span none = {NULL, 0};
    if (!inputs.size || *inputs.at != '[') {
        return none;
    }
    struct reading reading = {inputs.at + inputs.size, NULL};
    /* The value has been read before, so that it is JSON, and does not end before its "]". */
    const uint8_t *at = space_end(&reading, inputs.at + 1);
    if (*at == ']') {
        return none;
    }
    at = space_end(&reading, value_end(&reading, at));
    if (*at == ']') {
        return none;
    }
    at = space_end(&reading, at + 1);
    return *at == '"' ? (struct span){at, (size_t)(string_end(&reading, at) - at)} : none;
}

/* Whether a value is there, spelled or as an integer. */
static inline bool has(const struct event *event, enum value value) {
    return event->integers >> value & 1 || get(event, value).size;
}

static void set_sequence(struct scanner *scanner, const struct event *event) {
    int64_t number = MISSING;
    const enum value own = has(event, SEQ) ? SEQ : NCCL_SEQ;
    const bool is_integer = event->integers >> own & 1;
    if (is_integer) {
        number = event->numbers[own];
    }
    const bool has_sequence = is_integer || (get(event, own).size && integer(get(event, own), &number));
    if (!has_sequence || number == MISSING) {
        const struct span input = second_input(get(event, CONCRETE_INPUTS));
        if (input.size > sizeof("\"\"") - 1) {
            set_spelled_integer(scanner, event, SCANNER_COMMS, COMM_SEQUENCE, input);
            return;
        }
    }
    set_integer(scanner, event, SCANNER_COMMS, COMM_SEQUENCE, own);
}

/* A value, or the one that stands for it where torch's own metadata is not there. */
static struct span either(const struct event *event, enum value value, enum value other) {
    return get(event, has(event, value) ? value : other);
}

static void add_comm(struct scanner *scanner, const struct event *event) {
    const int table = SCANNER_COMMS;
    if (!add_row(scanner, table)) {
        return;
    }
    set(scanner, table, COMM_EVENT, (int64_t)scanner->tables[SCANNER_EVENTS].rows - 1);
    set_word(scanner, event, table, COMM_COLLECTIVE, SCANNER_TEXTS, either(event, COLLECTIVE, FUNC));
    set_word(scanner, event, table, COMM_GROUP, SCANNER_TEXTS, either(event, GROUP, PROCESS_GROUP));
    set_word(scanner, event, table, COMM_GROUP_RANKS, SCANNER_TEXTS, either(event, GROUP_RANKS, PROCESS_GROUP_RANKS));
    set_integer(scanner, event, table, COMM_GROUP_SIZE, GROUP_SIZE);
    set_integer(scanner, event, table, COMM_ELEMENTS_IN, ELEMENTS_IN);
    set_integer(scanner, event, table, COMM_ELEMENTS_OUT, ELEMENTS_OUT);
    set_word(scanner, event, table, COMM_DTYPE, SCANNER_TEXTS, either(event, DTYPE, DATATYPE));
    set_sequence(scanner, event);
    set_integer(scanner, event, table, COMM_PEER, has(event, DESTINATION) ? DESTINATION : SOURCE);
    set_integer(scanner, event, table, COMM_COUNT, COUNT);
    set_word(scanner, event, table, COMM_ALGORITHM, SCANNER_TEXTS, get(event, ALGO));
    set_word(scanner, event, table, COMM_PROTOCOL, SCANNER_TEXTS, get(event, PROTO));
    set_integer(scanner, event, table, COMM_CHANNELS, N_CHANNELS);
}

/* Tell of arguments that are none. */
static void judge_arguments(struct scanner *scanner, const struct event *event) {
    const struct span args = get(event, ARGS);
    if (args.size && *args.at != '{') {
        lose(scanner, LOSS_ARGUMENTS, event->position, "they are no object");
    }
}

/* What `mark_kernels` of torch.cuda was given, as a list of annotations or by members of its own. */
static struct span annotation(const struct event *event) {
    const bool is_list = event->present >> ANNOTATION & 1, is_named = event->present >> ANNOTATED_NAME & 1;
    return get(event, is_list ? ANNOTATION : is_named ? ANNOTATED_NAME : ANNOTATED_TEXT);
}

/* The host's memory of a copy, as "pinned"; of one between devices where it comes from. */
static struct span host_memory(const struct event *event) {
    const bool is_to_host = IS(get(event, COPY_KIND), "\"DtoH\"");
    return get(event, is_to_host ? COPY_DESTINATION : COPY_SOURCE);
}

static void add_arguments(struct scanner *scanner, const struct event *event, int code) {
    static const struct span none = {NULL, 0};
    const int table = SCANNER_EVENTS;
    const bool on_device = code >= SCANNER_KERNEL && code <= SCANNER_MEMSET;
    const bool is_described = code == SCANNER_MEMCPY && has(event, COPY_KIND);
    set_integer(scanner, event, table, EVENT_DEVICE, on_device ? DEVICE : NOTHING);
    set_integer(scanner, event, table, EVENT_STREAM, on_device ? STREAM : NOTHING);
    set_integer(scanner, event, table, EVENT_CORRELATION,
                on_device || code == SCANNER_RUNTIME ? CORRELATION : NOTHING);
    set_integer(scanner, event, table, EVENT_BYTES, on_device ? BYTES : NOTHING);
    set_number(scanner, event, table, EVENT_SHAPE, SCANNER_SHAPES,
               on_device            ? get(event, is_described ? COPY_KIND : GRID)
               : code == SCANNER_OP ? get(event, INPUT_DIMS)
                                    : none,
               &event->shape);
    if (code == SCANNER_OP) {
        set_word(scanner, event, table, EVENT_OCCUPANCY, SCANNER_SHAPES, get(event, KERNEL_FILE));
    } else {
        set_integer(scanner, event, table, EVENT_OCCUPANCY, on_device ? OCCUPANCY : NOTHING);
    }
    set_integer(scanner, event, table, EVENT_SEQUENCE,
                on_device            ? GRAPH_NODE
                : code == SCANNER_OP ? SEQUENCE_NUMBER
                                     : NOTHING);
    set_integer(scanner, event, table, EVENT_GRAPH, on_device ? GRAPH : NOTHING);
    set_number(scanner, event, table, EVENT_TYPES, SCANNER_SHAPES,
               on_device            ? is_described ? host_memory(event) : get(event, AUTOGRAD_PHASE)
               : code == SCANNER_OP ? get(event, INPUT_TYPE)
                                    : none,
               &event->types);
    set_number(scanner, event, table, EVENT_VALUES, SCANNER_SHAPES,
               on_device ? annotation(event) : code == SCANNER_OP ? get(event, CONCRETE_INPUTS) : none, &event->inputs);
}

static void add_event(struct scanner *scanner, const struct event *event) {
    const int8_t code = scanner->codes[event->category];
    const int64_t start = time_of(event, TS);
    const int64_t duration = time_of(event, DUR);
    if (start == UNUSABLE || duration == UNUSABLE) {
        lose_for_its_times(scanner, event);
        return;
    }
    const int32_t name = number_of(scanner, event, SCANNER_TEXTS, text_or_empty(get(event, NAME)), &event->name);
    const int32_t thread = thread_of(scanner, event);
    if (name == FULL || thread == FULL) {
        lose(scanner, LOSS_BROKEN, event->position, "more different names or threads than can be kept");
        return;
    }
    if (!add_row(scanner, SCANNER_EVENTS)) {
        return;
    }
    set(scanner, SCANNER_EVENTS, EVENT_NAME, name);
    set(scanner, SCANNER_EVENTS, EVENT_CATEGORY, code);
    set(scanner, SCANNER_EVENTS, EVENT_START, start);
    set(scanner, SCANNER_EVENTS, EVENT_DURATION, duration);
    set(scanner, SCANNER_EVENTS, EVENT_THREAD, thread);
    add_arguments(scanner, event, code);
    const bool on_device = code >= SCANNER_KERNEL && code <= SCANNER_MEMSET;
    if (name == COMMUNICATION_NAME || (on_device && (has(event, COLLECTIVE) || has(event, FUNC)))) {
        add_comm(scanner, event);
    }
    if (on_device || code == SCANNER_OP || code == SCANNER_RUNTIME || name == COMMUNICATION_NAME) {
        judge_arguments(scanner, event);
    }
}

static bool is_memory(const struct scanner *scanner, const struct event *event, struct span phase) {
    return scanner->codes[event->category] == SCANNER_INSTANT && IS(phase, "\"i\"") &&
           is_named(scanner, event, MEMORY_NAME);
}

static void add_memory(struct scanner *scanner, const struct event *event) {
    const int table = SCANNER_MEMORY;
    const int64_t time = time_of(event, TS);
    if (time == UNUSABLE) {
        lose_for_its_times(scanner, event);
        return;
    }
    const int32_t thread = thread_of(scanner, event);
    if (thread == FULL) {
        lose(scanner, LOSS_BROKEN, event->position, "more different threads than can be kept");
        return;
    }
    if (!add_row(scanner, table)) {
        return;
    }
    set(scanner, table, MEMORY_TIME, time);
    set_integer(scanner, event, table, MEMORY_DEVICE_TYPE, DEVICE_TYPE);
    set_integer(scanner, event, table, MEMORY_DEVICE, DEVICE_ID);
    set_integer(scanner, event, table, MEMORY_BYTES, CHANGE);
    set_integer(scanner, event, table, MEMORY_ALLOCATED, TOTAL_ALLOCATED);
    set_integer(scanner, event, table, MEMORY_RESERVED, TOTAL_RESERVED);
    set_integer(scanner, event, table, MEMORY_ADDRESS, ADDRESS);
    set(scanner, table, MEMORY_THREAD, thread);
    judge_arguments(scanner, event);
}

/* Whether a Python function is the call of a module, as "nn.Module: Linear_0". */
static bool is_module(const struct event *event) {
    static const char begins[] = {'"', 'n', 'n', '.', 'M', 'o', 'd', 'u', 'l', 'e', ':', ' '};
    const struct span name = get(event, NAME);
    return name.size >= sizeof begins && !memcmp(name.at, begins, sizeof begins);
}

/* A Python function: kept if it lasts, or is the call of a module. */
static void add_frame(struct scanner *scanner, const struct event *event) {
    const int table = SCANNER_FRAMES;
    const int64_t start = time_of(event, TS);
    const int64_t duration = time_of(event, DUR);
    const bool is_short = duration < SCANNER_SHORTEST_FRAME && !is_module(event);
    if (start == UNUSABLE || duration == UNUSABLE || is_short) {
        scanner->dropped[event->category]++;
        return;
    }
    const int32_t name = intern(scanner, SCANNER_TEXTS, text_or_empty(get(event, NAME)), event->position);
    const int32_t thread = thread_of(scanner, event);
    if (name == FULL || thread == FULL || !add_row(scanner, table)) {
        scanner->dropped[event->category]++;
        return;
    }
    set(scanner, table, FRAME_NAME, name);
    set(scanner, table, FRAME_START, start);
    set(scanner, table, FRAME_DURATION, duration);
    set(scanner, table, FRAME_THREAD, thread);
}

/* An event that has been read whole. */
static void take_event(struct scanner *scanner, struct event *event) {
    const struct span phase = text_or_empty(get(event, PH));
    const bool has_phase = is_text(phase) && phase.size > 2;
    const char *wrong = wrong_type(event);
    if (scanner->is_lost && (wrong || !has_phase)) {
        return; /* an object within a broken event */
    }
    scanner->is_lost = false;
    if (wrong) {
        lose(scanner, LOSS_MISTYPED, event->position, wrong);
        return;
    }
    scanner->seen += has_phase;
    if (!event->has_category) {
        set_category(scanner, event, phase);
        scanner->dropped[event->category]++;
        return;
    }
    const bool is_instant = is_memory(scanner, event, phase);
    const bool is_complete = scanner->codes[event->category] != SCANNER_INSTANT && IS(phase, "\"X\"");
    if (is_dropped(scanner, event) || !(is_instant || is_complete)) {
        scanner->dropped[event->category]++;
        return;
    }
    if (is_frame(scanner, event)) {
        add_frame(scanner, event);
        return;
    }
    if (wanted_arguments(scanner, event) & ~event->wanted) {
        reread_arguments(scanner, event);
    }
    if (is_instant) {
        add_memory(scanner, event);
    } else {
        add_event(scanner, event);
    }
}

/* -- for perfetto.c */

int32_t event_category(struct scanner *scanner, struct event *event, struct span category) {
    set_category(scanner, event, category);
    return event->category;
}

void event_known_category(const struct scanner *scanner, struct event *event, int32_t number) {
    event->category = number;
    event->has_category = true;
    event->kind = (uint8_t)(scanner->codes[number] + 1);
}

void event_name(struct scanner *scanner, struct event *event, struct span name) {
    struct reading reading = {name.at + name.size, NULL};
    put(event, NAME, name.at, reading.end);
    if (!event->has_category || is_dropped(scanner, event) || is_frame(scanner, event)) {
        event->wanted = 0;
        return;
    }
    take_event_member(scanner, event, &reading, NAME, name.at);
    event->wanted = wanted_arguments(scanner, event);
}

const uint8_t *event_json(struct scanner *scanner, struct event *event, enum value argument, struct span json) {
    struct reading reading = {json.at + json.size, NULL};
    const uint8_t *end = take_argument(scanner, event, &reading, argument, json.at);
    return end && !space_end(&reading, end) ? end : NULL;
}

bool event_take(struct scanner *scanner, struct event *event) {
    take_event(scanner, event);
    return scanner->status != SCANNER_NO_MEMORY;
}

/* -- finding the way again */

static bool is_member_name(struct span key) {
    return member_of(key) != OTHER;
}

/* A '{' and a key in quotes and a colon at `at`: is it the start of an event as every known writer spells it? */
static bool begins_event(const uint8_t *at, const uint8_t *end, bool (*accepts)(struct span)) {
    struct reading reading = {end, NULL};
    struct span key;
    at = space_end(&reading, at + 1);
    /* No key of an event is longer: a quote that opens a long string is not worth following. */
    reading.end = at && end - at > 64 ? at + 64 : end;
    return at && key_end(&reading, at, &key) && accepts(key);
}

/* The next '{' at which an event seems to begin: behind a '}' or a ','. NULL where there is none. */
static const uint8_t *next_event(const uint8_t *start, const uint8_t *end, bool (*accepts)(struct span)) {
    const uint8_t *brace = start;
    while ((brace = memchr(brace, '{', (size_t)(end - brace)))) {
        const uint8_t *before = brace;
        while (before > start && is_space(before[-1])) {
            before--;
        }
        if (before > start && (before[-1] == '}' || before[-1] == ',') && begins_event(brace, end, accepts)) {
            return brace;
        }
        brace++;
    }
    return NULL;
}

/* The ']' behind an event that seems to end the list: then comes the next member, or the end of all. */
static const uint8_t *list_end(const uint8_t *start, const uint8_t *end) {
    const struct reading reading = {end, NULL};
    const uint8_t *bracket = start;
    while ((bracket = memchr(bracket, ']', (size_t)(end - bracket)))) {
        const uint8_t *before = bracket, *behind = space_end(&reading, bracket + 1);
        while (before > start && is_space(before[-1])) {
            before--;
        }
        const bool is_behind_event = before > start && before[-1] == '}';
        if (is_behind_event && behind && *behind == '}' && !space_end(&reading, behind + 1)) {
            return bracket;
        }
        if (is_behind_event && behind && *behind == ',') {
            behind = space_end(&reading, behind + 1);
            if (behind && *behind == '"') {
                return bracket;
            }
        }
        bracket++;
    }
    return NULL;
}

/* More bytes than the start of an event takes: one may go on in the next block. */
enum { OVERLAP = 64 };

/* Where to go on after text that is no event, or is not all there; NULL where the text does not say it yet. */
static const uint8_t *resume(struct scanner *scanner, const struct reading *reading, const uint8_t *at,
                             uint64_t position, bool is_final) {
    const size_t left = (size_t)(reading->end - at);
    const bool may_wait = !is_final && left <= scanner->max_event_bytes;
    const bool is_event = *at == '{' || !scanner->is_lost;
    if (may_wait && !reading->problem) {
        return NULL;
    }
    const uint8_t *next = next_event(at, reading->end, is_member_name);
    const uint8_t *last = !next && is_final ? list_end(at, reading->end) : NULL;
    if (!next && !last && (is_final || (may_wait && is_event))) {
        scanner->status = is_final ? SCANNER_CUT : scanner->status;
        return NULL;
    }
    if (is_event) {
        const char *problem = reading->problem ? reading->problem : "it does not end";
        problem = left <= scanner->max_event_bytes ? problem : "longer than an event may be";
        lose(scanner, LOSS_BROKEN, position, problem);
    }
    scanner->is_lost = !last;
    if (next || last) {
        return next ? next : last;
    }
    return left > OVERLAP ? reading->end - OVERLAP : at + 1;
}

/* -- the list */

/* How much behind the end of the list is searched for events, which would mean that it is not the end. */
enum { LOOK_AHEAD = 1 << 16 };

static bool is_phase(struct span key) {
    return member_of(key) == PH;
}

/* At a ']': where events go on nevertheless; NULL where they do not, or where the text does not say it yet. */
static const uint8_t *beyond_end(struct scanner *scanner, const uint8_t *at, const uint8_t *end, uint64_t position,
                                 bool is_final) {
    const size_t left = (size_t)(end - at);
    if (left < LOOK_AHEAD && !is_final) {
        return NULL;
    }
    const uint8_t *next = next_event(at, left < LOOK_AHEAD ? end : at + LOOK_AHEAD, is_phase);
    if (next) {
        lose(scanner, LOSS_BROKEN, position, "the list of events seems to end");
    } else {
        scanner->status = SCANNER_LIST_END;
    }
    return next;
}

void event_begin(const struct scanner *scanner, struct event *event, uint64_t position) {
    event->present = event->integers = 0;
    event->thread.at = NULL;
    event->position = position;
    event->category = UNKNOWN_CATEGORY;
    event->has_category = false;
    event->kind = START;
    event->gap = scanner->first_gap;
    event->wanted = ALL_ARGUMENTS;
    event->name = event->shape = event->types = event->inputs = (struct known){NULL, NEW};
}

static const uint8_t *read_event(struct scanner *scanner, struct reading *reading, const uint8_t *at,
                                 uint64_t position) {
    struct event event;
    event_begin(scanner, &event, position);
    reading->problem = NULL;
    if (*at != '{') {
        return refuse(reading, "no event stands there");
    }
    const uint8_t *end = object_end(scanner, &event, reading, at, false, take_event_member);
    if (end) {
        take_event(scanner, &event);
    }
    return end;
}

/* Read as many events as there are; returns the number of bytes that are done with. */
static size_t scan(struct scanner *scanner, const uint8_t *text, size_t size, bool is_final) {
    struct reading reading = {text + size, NULL};
    const uint8_t *at = text;
    while (scanner->status == SCANNER_MORE) {
        while (at < reading.end && (is_space(*at) || *at == ',')) {
            at++;
        }
        if (at == reading.end) {
            scanner->status = is_final ? SCANNER_CUT : SCANNER_MORE;
            break;
        }
        const uint64_t position = scanner->position + (uint64_t)(at - text);
        const uint8_t *next;
        if (*at == ']' && !scanner->is_lost) {
            next = beyond_end(scanner, at, reading.end, position, is_final);
        } else {
            next = read_event(scanner, &reading, at, position);
            next = next ? next : resume(scanner, &reading, at, position, is_final);
        }
        if (!next) {
            break;
        }
        at = next;
    }
    scanner->position += (uint64_t)(at - text);
    return (size_t)(at - text);
}

/* At least so much of a block is read together with what the block before has left: an event or two. */
enum { BRIDGE = 1 << 10 };

/* Read what the blocks before have left, with as much of this one as it takes: returns how much. */
static size_t scan_carry(struct scanner *scanner, const uint8_t *text, size_t size) {
    struct buffer *carry = &scanner->carry;
    size_t taken = 0;
    while (carry->size && taken < size && scanner->status == SCANNER_MORE) {
        const size_t before = carry->size, left = size - taken, enough = before > BRIDGE ? before : BRIDGE;
        const size_t piece = left < enough ? left : enough;
        if (!append(scanner, carry, text + taken, piece)) {
            break;
        }
        taken += piece;
        if (carry->size < scanner->wanted) {
            continue;
        }
        const size_t used = scan(scanner, carry->bytes, carry->size, false);
        if (used >= before) { /* the rest is read where it is */
            taken -= carry->size - used;
            carry->size = 0;
        } else {
            drop_front(carry, used);
        }
        scanner->wanted = 2 * carry->size;
    }
    return taken;
}

/* -- for the caller */

int scanner_version(void) {
    return SCANNER_VERSION;
}

static struct span json_string(const char *text) {
    return (struct span){(const uint8_t *)text, strlen(text)};
}

struct scanner *scanner_new(uint64_t position, const char *communication, const char *memory,
                            uint64_t max_event_bytes, uint32_t max_strings) {
    struct scanner *scanner = calloc(1, sizeof *scanner);
    if (!scanner) {
        return NULL;
    }
    scanner->position = position;
    scanner->max_event_bytes = max_event_bytes;
    for (int vocabulary = 0; vocabulary < SCANNER_VOCABULARIES; vocabulary++) {
        scanner->vocabularies[vocabulary].max_strings = max_strings;
    }
    scanner->vocabularies[SCANNER_CATEGORIES].max_strings = MAX_CATEGORIES;
    memset(scanner->codes, DROPPED, sizeof scanner->codes);
    if (!reserve(scanner, &scanner->carry, BRIDGE) ||
        intern(scanner, SCANNER_TEXTS, json_string(communication), 0) != COMMUNICATION_NAME ||
        intern(scanner, SCANNER_TEXTS, json_string(memory), 0) != MEMORY_NAME ||
        intern(scanner, SCANNER_CATEGORIES, json_string("\"\""), 0) != UNKNOWN_CATEGORY) {
        scanner_free(scanner);
        return NULL;
    }
    return scanner;
}

int scanner_keep(struct scanner *scanner, const char *category, int code) {
    const int32_t number = intern(scanner, SCANNER_CATEGORIES, json_string(category), 0);
    if (number != FULL) {
        scanner->codes[number] = (int8_t)code;
    }
    return number != FULL;
}

int scanner_feed(struct scanner *scanner, const uint8_t *text, size_t size) {
    size_t used = scan_carry(scanner, text, size);
    if (scanner->status == SCANNER_MORE && used < size) {
        used += scan(scanner, text + used, size - used, false);
        scanner->wanted = 2 * (size - used);
    }
    append(scanner, &scanner->carry, text + used, size - used);
    return (int)scanner->status;
}

int scanner_finish(struct scanner *scanner) {
    if (scanner->status == SCANNER_MORE) {
        drop_front(&scanner->carry, scan(scanner, scanner->carry.bytes, scanner->carry.size, true));
    }
    return (int)scanner->status;
}

void scanner_free(struct scanner *scanner) {
    if (!scanner) {
        return;
    }
    for (int table = 0; table < SCANNER_TABLES; table++) {
        for (int column = 0; column < MAX_COLUMNS; column++) {
            free(scanner->tables[table].columns[column]);
        }
    }
    for (int vocabulary = 0; vocabulary < SCANNER_VOCABULARIES; vocabulary++) {
        vocabulary_free(&scanner->vocabularies[vocabulary]);
    }
    free(scanner->carry.bytes);
    free(scanner->thread.bytes);
    free(scanner);
}

uint64_t scanner_position(const struct scanner *scanner) {
    return scanner->position;
}

const uint8_t *scanner_rest(const struct scanner *scanner, size_t *size) {
    *size = scanner->carry.size;
    return scanner->carry.bytes;
}

uint64_t scanner_seen(const struct scanner *scanner) {
    return scanner->seen;
}

const struct scanner_loss *scanner_lost(const struct scanner *scanner, int kind) {
    return &scanner->losses[kind];
}

const uint64_t *scanner_dropped(const struct scanner *scanner) {
    return scanner->dropped;
}

size_t scanner_rows(const struct scanner *scanner, int table) {
    return scanner->tables[table].rows;
}

void *scanner_take(struct scanner *scanner, int table, int column) {
    struct table *of = &scanner->tables[table];
    void *taken = of->columns[column];
    of->columns[column] = NULL;
    of->capacity = of->rows; /* what was taken is not to be written to */
    void *trimmed = taken ? realloc(taken, of->rows * WIDTHS[table][column]) : NULL;
    return trimmed ? trimmed : taken;
}

void scanner_release(void *column) {
    free(column);
}

size_t scanner_strings(const struct scanner *scanner, int vocabulary, const uint8_t **bytes, const uint64_t **ends,
                       const uint64_t **positions) {
    const struct vocabulary *of = &scanner->vocabularies[vocabulary];
    *bytes = of->bytes;
    *ends = of->ends;
    *positions = of->positions;
    return of->count;
}

void scanner_remap(int32_t *column, size_t rows, const int32_t *map) {
    for (size_t row = 0; row < rows; row++) {
        column[row] = column[row] < 0 ? column[row] : map[column[row]];
    }
}
