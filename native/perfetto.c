/* From top to bottom: memory, fields of messages, what is kept of a sequence, JSON, arguments, events, packets, blocks.
 * `perfetto.h` says what is supported.
 *
 * A message is looked through field by field, where it lies: nothing is copied but strings that later packets refer to.
 * Both readings take the same packets, since they go by the same fields: so a beginning has one number in both.
 *
 * The second reading hands each event to the scanner, which writes its row (`event.h`): integers as they are, all else
 * as JSON would spell it, since that is how the scanner tells texts and lists apart.
 */
#include "perfetto.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "event.h"
#include "json.h"
#include "vocabulary.h"

enum { MAX_NESTED = 16, MAX_DESCRIPTOR_BYTES = 1 << 26 };

/* Numbers of fields, as in perfetto_trace.proto. */
enum { TRACE_PACKET = 1 };
enum {
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_EVENT = 11,
    PACKET_INTERNED = 12,
    PACKET_FLAGS = 13,
    PACKET_CLEARED = 41,
    PACKET_DEFAULTS = 59,
    PACKET_DESCRIPTOR = 60,
};
enum {
    TRACK_EVENT_CATEGORY_IIDS = 3,
    TRACK_EVENT_ANNOTATIONS = 4,
    TRACK_EVENT_TYPE = 9,
    TRACK_EVENT_NAME_IID = 10,
    TRACK_EVENT_TRACK = 11,
    TRACK_EVENT_CATEGORIES = 22,
    TRACK_EVENT_NAME = 23,
    TRACK_EVENT_FLOWS_OLD = 36,
    TRACK_EVENT_FLOWS = 47,
    TRACK_EVENT_CORRELATION = 52,
};
enum { TYPE_BEGIN = 1, TYPE_END = 2, TYPE_INSTANT = 3 };
enum {
    ANNOTATION_NAME_IID = 1,
    ANNOTATION_BOOL = 2,
    ANNOTATION_UINT = 3,
    ANNOTATION_INT = 4,
    ANNOTATION_DOUBLE = 5,
    ANNOTATION_STRING = 6,
    ANNOTATION_POINTER = 7,
    ANNOTATION_JSON = 9,
    ANNOTATION_NAME = 10,
    ANNOTATION_MEMBER = 11,
    ANNOTATION_ELEMENT = 12,
    ANNOTATION_STRING_IID = 17,
};
enum { INTERNED_CATEGORY = 1, INTERNED_NAME = 2, INTERNED_ARGUMENT = 3, INTERNED_STRING = 29 };
enum { STRING_IID = 1, STRING_TEXT = 2 };
enum { DEFAULTS_EVENT = 11, DEFAULTS_TRACK = 11 };
enum { FLAG_CLEARED = 1 };

/* -- memory */

struct bytes {
    uint8_t *at;
    size_t size, capacity;
};

struct sequence {
    uint64_t generation; /* counts how often its strings were forgotten */
    uint64_t track;
    bool has_track;
};

/* Texts of categories that were seen, and their numbers. */
enum { CATEGORY_SLOTS = 16, MAX_CATEGORY = 31 };

struct category {
    int32_t number;
    uint8_t size;
    uint8_t text[MAX_CATEGORY];
};

struct perfetto {
    bool no_memory, is_writing, is_astray;
    size_t max_packet;
    uint32_t max_strings;
    uint64_t position, skip; /* bytes that are done with, and those that follow and are of no interest */
    size_t needed;           /* of `carry`, before another look is worth it */
    struct bytes carry, text, descriptors, names;
    uint64_t last_track; /* the uuid that was asked for before, and its number */
    int32_t last_number;
    uint64_t last_id; /* the same of a sequence */
    int32_t last_sequence;
    struct scanner *scanner;
    struct category categories[CATEGORY_SLOTS];
    struct bytes threads; /* of each track: its number among the scanner's threads, or NEW */
    struct vocabulary tracks, sequences, strings;
    struct bytes states;  /* a `struct sequence` for each of `sequences` */
    struct bytes texts;   /* where each of `strings` stands in `names`: two numbers */
    struct bytes mark_tracks, mark_times, mark_kinds;
    struct bytes only_end; /* 1 for each packet that only ends a slice */
    size_t taken;          /* how many packets were */
    const uint8_t *places;
    const uint64_t *place_ends;
    size_t place_count;
    const int64_t *durations;
    size_t beginnings, begun;
    uint64_t lost[PERFETTO_LOSSES], first_lost[PERFETTO_LOSSES];
};

static bool grow(struct perfetto *perfetto, struct bytes *bytes, size_t more) {
    const size_t capacity = 2 * (bytes->size + more);
    uint8_t *larger = realloc(bytes->at, capacity);
    if (!larger) {
        perfetto->no_memory = true;
        return false;
    }
    bytes->at = larger;
    bytes->capacity = capacity;
    return true;
}

static inline bool reserve(struct perfetto *perfetto, struct bytes *bytes, size_t more) {
    return more <= bytes->capacity - bytes->size || grow(perfetto, bytes, more);
}

static inline bool append(struct perfetto *perfetto, struct bytes *bytes, const void *from, size_t size) {
    if (!reserve(perfetto, bytes, size)) {
        return false;
    }
    if (size) {
        memcpy(bytes->at + bytes->size, from, size);
    }
    bytes->size += size;
    return true;
}

static void lose(struct perfetto *perfetto, enum perfetto_loss loss) {
    if (!perfetto->lost[loss]++) {
        perfetto->first_lost[loss] = perfetto->position;
    }
}

/* The number of a string; FULL is counted. */
static int32_t number_of(struct perfetto *perfetto, struct vocabulary *vocabulary, const void *at, size_t size) {
    const int32_t number = vocabulary_intern(vocabulary, at, size, perfetto->position);
    if (number == FULL) {
        perfetto->no_memory |= vocabulary->no_memory;
        lose(perfetto, PERFETTO_STRINGS);
    }
    return number;
}

/* -- fields of messages */

enum wire { WIRE_NUMBER = 0, WIRE_EIGHT = 1, WIRE_BYTES = 2, WIRE_FOUR = 5 };

struct field {
    uint64_t tag_number, value; /* the value of what is no bytes */
    int wire;
    struct span bytes;
};

/* The place behind a number of several bytes; NULL if it does not end within ten, with `*cut` where more could help. */
static const uint8_t *long_number_at(const uint8_t *at, const uint8_t *end, uint64_t *value, bool *cut) {
    uint64_t found = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (at == end) {
            *cut = true;
            return NULL;
        }
        const uint8_t byte = *at++;
        found |= shift < 64 ? (uint64_t)(byte & 0x7f) << shift : 0;
        if (byte < 0x80) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

/* The same of any number; most have one byte. */
static inline const uint8_t *number_at(const uint8_t *at, const uint8_t *end, uint64_t *value, bool *cut) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    return long_number_at(at, end, value, cut);
}

/* The place behind the next field, or NULL where it is none. */
static inline const uint8_t *next_field(const uint8_t *at, const uint8_t *end, struct field *field) {
    bool cut;
    uint64_t tag;
    at = number_at(at, end, &tag, &cut);
    if (!at || !(tag >> 3)) {
        return NULL;
    }
    field->tag_number = tag >> 3;
    field->wire = (int)(tag & 7);
    field->value = 0;
    field->bytes = (struct span){at, 0};
    const size_t left = (size_t)(end - at);
    switch (field->wire) {
    case WIRE_NUMBER: return number_at(at, end, &field->value, &cut);
    case WIRE_BYTES: {
        uint64_t size = 0;
        at = number_at(at, end, &size, &cut);
        if (!at || size > (size_t)(end - at)) {
            return NULL;
        }
        field->bytes = (struct span){at, (size_t)size};
        return at + size;
    }
    case WIRE_EIGHT:
    case WIRE_FOUR: {
        const size_t size = field->wire == WIRE_EIGHT ? 8 : 4;
        if (left < size) {
            return NULL;
        }
        for (size_t byte = 0; byte < size; byte++) {
            field->value |= (uint64_t)at[byte] << 8 * byte;
        }
        return at + size;
    }
    default: return NULL;
    }
}

/* Whether bytes are fields from one end to the other. */
static bool is_message(struct span message) {
    struct field field;
    const uint8_t *at = message.at, *end = message.at + message.size;
    while (at && at < end) {
        at = next_field(at, end, &field);
    }
    return at != NULL;
}

/* -- what is kept of a sequence */

static struct sequence *sequence_of(struct perfetto *perfetto, uint64_t id) {
    if (perfetto->last_sequence != NEW && perfetto->last_id == id) {
        return (struct sequence *)(void *)(perfetto->states.at) + perfetto->last_sequence;
    }
    const int32_t number = number_of(perfetto, &perfetto->sequences, &id, sizeof id);
    if (number == FULL) {
        return NULL;
    }
    const size_t size = ((size_t)number + 1) * sizeof(struct sequence);
    if (size > perfetto->states.size) {
        static const struct sequence fresh = {0, 0, false};
        if (!append(perfetto, &perfetto->states, &fresh, sizeof fresh)) {
            return NULL;
        }
    }
    perfetto->last_id = id;
    perfetto->last_sequence = number;
    return (struct sequence *)(void *)(perfetto->states.at) + number;
}

/* What an interned string is found by. */
struct key {
    uint64_t sequence, generation, iid, kind;
};

static struct key key_of(uint64_t id, const struct sequence *sequence, uint64_t kind, uint64_t iid) {
    return (struct key){id, sequence ? sequence->generation : 0, iid, kind};
}

static void intern_string(struct perfetto *perfetto, struct key key, struct span text) {
    const int32_t number = number_of(perfetto, &perfetto->strings, &key, sizeof key);
    if (number == FULL || text.size > MAX_STRING_BYTES - perfetto->names.size) {
        if (number != FULL) {
            lose(perfetto, PERFETTO_STRINGS);
        }
        return;
    }
    const uint64_t place[2] = {perfetto->names.size, text.size};
    const size_t at = (size_t)number * sizeof place;
    if (append(perfetto, &perfetto->names, text.at, text.size) &&
        (at + sizeof place <= perfetto->texts.size || reserve(perfetto, &perfetto->texts, sizeof place))) {
        while (perfetto->texts.size < at + sizeof place) {
            static const uint64_t nothing[2] = {0, 0};
            if (!append(perfetto, &perfetto->texts, nothing, sizeof nothing)) {
                return;
            }
        }
        memcpy(perfetto->texts.at + at, place, sizeof place);
    }
}

/* Size 0 and NULL without one. */
static struct span interned(const struct perfetto *perfetto, struct key key) {
    const int32_t number = vocabulary_find(&perfetto->strings, (const uint8_t *)&key, sizeof key);
    uint64_t place[2];
    if (number == NEW || !perfetto->names.at || ((size_t)number + 1) * sizeof place > perfetto->texts.size) {
        return (struct span){NULL, 0};
    }
    memcpy(place, perfetto->texts.at + (size_t)number * sizeof place, sizeof place);
    return (struct span){perfetto->names.at + place[0], (size_t)place[1]};
}

static void take_interned(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence, struct span data) {
    struct field entry, field;
    for (const uint8_t *at = data.at, *end = at + data.size; at && at < end;) {
        at = next_field(at, end, &entry);
        if (!at || entry.wire != WIRE_BYTES) {
            continue;
        }
        uint64_t iid = 0;
        struct span text = {NULL, 0};
        const uint8_t *inner = entry.bytes.at, *inner_end = inner + entry.bytes.size;
        while (inner && inner < inner_end) {
            inner = next_field(inner, inner_end, &field);
            iid = inner && field.tag_number == STRING_IID && field.wire == WIRE_NUMBER ? field.value : iid;
            text = inner && field.tag_number == STRING_TEXT && field.wire == WIRE_BYTES ? field.bytes : text;
        }
        const uint64_t kind = entry.tag_number;
        if (inner && text.at &&
            (kind == INTERNED_CATEGORY || kind == INTERNED_NAME || kind == INTERNED_ARGUMENT ||
             kind == INTERNED_STRING)) {
            intern_string(perfetto, key_of(id, sequence, kind, iid), text);
        }
    }
}

/* -- JSON */

#define PUT(perfetto, literal) append(perfetto, &(perfetto)->text, literal, sizeof(literal) - 1)

static inline bool put_byte(struct perfetto *perfetto, char byte) {
    return append(perfetto, &perfetto->text, &byte, 1);
}

static bool put_string(struct perfetto *perfetto, struct span string) {
    static const char digits[] = "0123456789abcdef";
    /* The letters behind a backslash, as json.dumps has them; those of no name are numbers. */
    static const char named[' '] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    size_t escaped = 0;
    for (size_t byte = 0; byte < string.size; byte++) {
        escaped += string.at[byte] < ' ' || string.at[byte] == '"' || string.at[byte] == '\\';
    }
    if (!reserve(perfetto, &perfetto->text, string.size + 5 * escaped + 2)) {
        return false;
    }
    uint8_t *to = perfetto->text.at + perfetto->text.size;
    *to++ = '"';
    if (!escaped && string.size) {
        memcpy(to, string.at, string.size);
        to += string.size;
    }
    for (size_t byte = 0; escaped && byte < string.size; byte++) {
        const uint8_t letter = string.at[byte];
        if (letter < ' ' && named[letter]) {
            *to++ = '\\';
            *to++ = (uint8_t)named[letter];
        } else if (letter < ' ') {
            memcpy(to, "\\u00", 4);
            to[4] = (uint8_t)digits[letter >> 4];
            to[5] = (uint8_t)digits[letter & 15];
            to += 6;
        } else {
            if (letter == '"' || letter == '\\') {
                *to++ = '\\';
            }
            *to++ = letter;
        }
    }
    *to++ = '"';
    perfetto->text.size = (size_t)(to - perfetto->text.at);
    return true;
}

static bool put_natural(struct perfetto *perfetto, uint64_t number) {
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return append(perfetto, &perfetto->text, digits + at, sizeof digits - at);
}

static bool put_integer(struct perfetto *perfetto, uint64_t number) {
    return number >> 63 ? PUT(perfetto, "-") && put_natural(perfetto, 0 - number) : put_natural(perfetto, number);
}

static bool put_double(struct perfetto *perfetto, uint64_t bits) {
    double number;
    char text[40];
    memcpy(&number, &bits, sizeof number);
    if (!(number - number == 0)) { /* none that JSON has */
        return PUT(perfetto, "null");
    }
    snprintf(text, sizeof text, "%.17g", number);
    for (char *letter = text; *letter; letter++) {
        *letter = *letter == ',' ? '.' : *letter; /* a locale's */
    }
    return append(perfetto, &perfetto->text, text, strlen(text));
}

/* Text that claims to be JSON; null where it is none. */
static bool put_json(struct perfetto *perfetto, struct span json) {
    const size_t start = perfetto->text.size;
    while (json.size && is_space(*json.at)) {
        json = (struct span){json.at + 1, json.size - 1};
    }
    /* Of a number, the end is known by what follows. */
    if (!append(perfetto, &perfetto->text, json.at, json.size) || !PUT(perfetto, " ")) {
        return false;
    }
    struct reading reading = {perfetto->text.at + perfetto->text.size, NULL};
    const uint8_t *end = json.size ? value_end(&reading, perfetto->text.at + start) : NULL;
    if (end && !space_end(&reading, end)) {
        perfetto->text.size = (size_t)(end - perfetto->text.at);
        return true;
    }
    perfetto->text.size = start;
    return PUT(perfetto, "null");
}

/* -- arguments */

struct annotation {
    struct span name, bytes;
    uint64_t value;
    int kind; /* an ANNOTATION_...; 0 without a value */
};

/* False where it is no message. */
static bool read_annotation(const struct perfetto *perfetto, uint64_t id, const struct sequence *sequence,
                            struct span message, struct annotation *annotation) {
    struct field field;
    *annotation = (struct annotation){{NULL, 0}, {NULL, 0}, 0, 0};
    for (const uint8_t *at = message.at, *end = at + message.size; at < end;) {
        at = next_field(at, end, &field);
        if (!at) {
            return false;
        }
        const bool is_bytes = field.wire == WIRE_BYTES;
        switch (field.tag_number) {
        case ANNOTATION_NAME: annotation->name = is_bytes ? field.bytes : annotation->name; break;
        case ANNOTATION_NAME_IID:
            annotation->name = interned(perfetto, key_of(id, sequence, INTERNED_ARGUMENT, field.value));
            break;
        case ANNOTATION_STRING_IID:
            annotation->bytes = interned(perfetto, key_of(id, sequence, INTERNED_STRING, field.value));
            annotation->kind = annotation->bytes.at ? ANNOTATION_STRING : 0;
            break;
        case ANNOTATION_STRING:
        case ANNOTATION_JSON:
        case ANNOTATION_MEMBER:
        case ANNOTATION_ELEMENT:
            annotation->bytes = field.bytes;
            annotation->kind = is_bytes ? (int)field.tag_number : 0;
            break;
        case ANNOTATION_BOOL:
        case ANNOTATION_UINT:
        case ANNOTATION_INT:
        case ANNOTATION_POINTER:
        case ANNOTATION_DOUBLE:
            annotation->value = field.value;
            annotation->kind = is_bytes ? 0 : (int)field.tag_number;
            break;
        default: break;
        }
    }
    return true;
}

static bool put_value(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence, struct span message,
                      const struct annotation *annotation, int depth);

/* The members of an object or the elements of a list: all fields of the annotation that have its kind. */
static bool put_nested(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence, struct span message,
                       int kind, int depth) {
    const bool is_object = kind == ANNOTATION_MEMBER;
    bool is_first = true;
    struct field field;
    struct annotation inner;
    if (!put_byte(perfetto, is_object ? '{' : '[')) {
        return false;
    }
    for (const uint8_t *at = message.at, *end = at + message.size; at && at < end;) {
        at = next_field(at, end, &field);
        if (!at || field.tag_number != (uint64_t)kind || field.wire != WIRE_BYTES ||
            !read_annotation(perfetto, id, sequence, field.bytes, &inner)) {
            continue;
        }
        if ((!is_first && !PUT(perfetto, ",")) ||
            (is_object && (!put_string(perfetto, inner.name) || !PUT(perfetto, ":"))) ||
            !put_value(perfetto, id, sequence, field.bytes, &inner, depth)) {
            return false;
        }
        is_first = false;
    }
    return put_byte(perfetto, is_object ? '}' : ']');
}

static bool put_value(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence, struct span message,
                      const struct annotation *annotation, int depth) {
    switch (annotation->kind) {
    case ANNOTATION_BOOL: return (annotation->value ? PUT(perfetto, "true") : PUT(perfetto, "false"));
    case ANNOTATION_INT: return put_integer(perfetto, annotation->value);
    case ANNOTATION_UINT:
    case ANNOTATION_POINTER: return put_natural(perfetto, annotation->value);
    case ANNOTATION_DOUBLE: return put_double(perfetto, annotation->value);
    case ANNOTATION_STRING: return put_string(perfetto, annotation->bytes);
    case ANNOTATION_JSON: return put_json(perfetto, annotation->bytes);
    case ANNOTATION_MEMBER:
    case ANNOTATION_ELEMENT:
        return depth < MAX_NESTED ? put_nested(perfetto, id, sequence, message, annotation->kind, depth + 1)
                                  : PUT(perfetto, "null");
    default: return PUT(perfetto, "null");
    }
}

/* -- events */

struct track_event {
    uint64_t type, track, link; /* `link`: the correlation id, or the first flow */
    bool has_track, has_correlation, has_flow;
    struct span name, category;
    uint64_t name_iid, category_iid;
    bool has_name_iid, has_category_iid;
    struct span annotations; /* from the first to the last, with what stands between */
};

static bool read_event(struct span message, struct track_event *event) {
    struct field field;
    bool cut;
    *event = (struct track_event){0, 0, 0, false, false, false, {NULL, 0}, {NULL, 0}, 0, 0, false, false, {NULL, 0}};
    for (const uint8_t *at = message.at, *end = at + message.size; at < end;) {
        const uint8_t *const start = at;
        at = next_field(at, end, &field);
        if (!at) {
            return false;
        }
        if (field.tag_number == TRACK_EVENT_ANNOTATIONS) {
            event->annotations.at = event->annotations.at ? event->annotations.at : start;
            event->annotations.size = (size_t)(at - event->annotations.at);
            continue;
        }
        const bool is_bytes = field.wire == WIRE_BYTES;
        uint64_t first = field.value;
        switch (field.tag_number) {
        case TRACK_EVENT_TYPE: event->type = field.value; break;
        case TRACK_EVENT_TRACK:
            event->track = field.value;
            event->has_track = true;
            break;
        case TRACK_EVENT_NAME: event->name = is_bytes ? field.bytes : event->name; break;
        case TRACK_EVENT_NAME_IID:
            event->name_iid = field.value;
            event->has_name_iid = true;
            break;
        case TRACK_EVENT_CATEGORIES:
            event->category = is_bytes && !event->category.at ? field.bytes : event->category;
            break;
        case TRACK_EVENT_CATEGORY_IIDS:
            if (is_bytes && !number_at(field.bytes.at, field.bytes.at + field.bytes.size, &first, &cut)) {
                break;
            }
            event->category_iid = event->has_category_iid ? event->category_iid : first;
            event->has_category_iid = true;
            break;
        case TRACK_EVENT_CORRELATION:
            event->link = field.value;
            event->has_correlation = true;
            break;
        case TRACK_EVENT_FLOWS:
        case TRACK_EVENT_FLOWS_OLD:
            if (!is_bytes && !event->has_correlation && !event->has_flow) {
                event->link = field.value;
                event->has_flow = true;
            }
            break;
        default: break;
        }
    }
    return true;
}

/* An event that is handed to the scanner, and what of it stands in `perfetto.text`, which may still move. */
struct handed {
    struct event event;
    uint64_t placed; /* bits of those values, which stand from `starts` to `ends` */
    size_t starts[VALUES], ends[VALUES];
};

static void hand_number(struct handed *handed, enum value value, int64_t number) {
    put_number(&handed->event, value, number);
    handed->placed &= ~BIT(value);
}

/* The value stands in `perfetto.text` from `start` on. */
static void hand_text(const struct perfetto *perfetto, struct handed *handed, enum value value, size_t start) {
    handed->placed |= BIT(value);
    handed->starts[value] = start;
    handed->ends[value] = perfetto->text.size;
}

/* Whether an annotation is an integer of 64 bits, written as such or as the double nearest to it. */
static bool is_integer(const struct annotation *annotation, int64_t *number) {
    if (annotation->kind == ANNOTATION_DOUBLE) {
        double value;
        memcpy(&value, &annotation->value, sizeof value);
        if (!(value > 0 && value < 1e15)) { /* no number, or a zero that may have a sign */
            return false;
        }
        *number = (int64_t)value;
        return (double)*number == value;
    }
    *number = (int64_t)annotation->value;
    return annotation->kind == ANNOTATION_INT ||
           ((annotation->kind == ANNOTATION_UINT || annotation->kind == ANNOTATION_POINTER) && *number >= 0);
}

/* An argument that the event's row may want. False: no memory. */
static bool hand_argument(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence,
                          struct handed *handed, enum value argument, struct span message,
                          const struct annotation *annotation) {
    const bool is_number = NUMBERS >> argument & 1;
    int64_t number;
    if (is_number && is_integer(annotation, &number)) {
        hand_number(handed, argument, number);
        return true;
    }
    if (!is_number && annotation->kind == ANNOTATION_JSON) {
        struct span json = annotation->bytes;
        while (json.size && is_space(*json.at)) {
            json = (struct span){json.at + 1, json.size - 1};
        }
        if (json.size && event_json(perfetto->scanner, &handed->event, argument, json)) {
            handed->placed &= ~BIT(argument);
            return true;
        }
    }
    const size_t start = perfetto->text.size;
    if (!put_value(perfetto, id, sequence, message, annotation, 0)) {
        return false;
    }
    hand_text(perfetto, handed, argument, start);
    return true;
}

/* False: no memory. */
static bool hand_arguments(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence,
                           const struct track_event *event, struct handed *handed) {
    struct field field;
    struct annotation annotation;
    bool is_linked = !event->has_correlation && !event->has_flow, is_whole = true;
    const uint8_t *at = event->annotations.at, *end = at ? at + event->annotations.size : at;
    while (at && at < end) {
        at = next_field(at, end, &field);
        if (!at || field.tag_number != TRACK_EVENT_ANNOTATIONS || field.wire != WIRE_BYTES) {
            continue;
        }
        if (!read_annotation(perfetto, id, sequence, field.bytes, &annotation)) {
            is_whole = false;
            continue;
        }
        const enum value argument = annotation.name.at ? argument_of(annotation.name) : OTHER;
        is_linked |= argument == CORRELATION;
        if (argument != OTHER && handed->event.wanted >> argument & 1 &&
            !hand_argument(perfetto, id, sequence, handed, argument, field.bytes, &annotation)) {
            return false;
        }
    }
    if (!is_linked && handed->event.wanted >> CORRELATION & 1) {
        const struct annotation link = {{NULL, 0}, {NULL, 0}, event->link, ANNOTATION_UINT};
        if (!hand_argument(perfetto, id, sequence, handed, CORRELATION, (struct span){NULL, 0}, &link)) {
            return false;
        }
    }
    if (!is_whole) {
        lose(perfetto, PERFETTO_ARGUMENTS);
    }
    return true;
}

/* False: no memory. */
static bool hand_category(struct perfetto *perfetto, struct event *event, struct span category) {
    const size_t mixed = category.size ? category.size ^ category.at[0] ^ category.at[category.size - 1] : 0;
    struct category *known = &perfetto->categories[mixed % CATEGORY_SLOTS];
    if (category.size && known->size == category.size && !memcmp(known->text, category.at, category.size)) {
        event_known_category(perfetto->scanner, event, known->number);
        return true;
    }
    const size_t start = perfetto->text.size;
    if (!put_string(perfetto, category)) {
        return false;
    }
    const struct span text = {perfetto->text.at + start, perfetto->text.size - start};
    const int32_t number = event_category(perfetto->scanner, event, text);
    if (number > 0 && category.size && category.size <= MAX_CATEGORY) {
        known->number = number;
        known->size = (uint8_t)category.size;
        memcpy(known->text, category.at, category.size);
    }
    return true;
}

/* Let what stands in `perfetto.text`, which moves no more, be values of the event. */
static void place(const struct perfetto *perfetto, struct handed *handed) {
    struct event *event = &handed->event;
    for (int value = 0; value < VALUES; value++) {
        if (handed->placed >> value & 1) {
            put_spelled(event, (enum value)value, perfetto->text.at + handed->starts[value],
                        perfetto->text.at + handed->ends[value]);
        }
    }
    event->name.at = event->name.at ? event->values[NAME].at : NULL;
}

static int32_t track_of(struct perfetto *perfetto, uint64_t uuid) {
    if (perfetto->last_number == NEW || perfetto->last_track != uuid) {
        perfetto->last_track = uuid;
        perfetto->last_number = vocabulary_find(&perfetto->tracks, (const uint8_t *)&uuid, sizeof uuid);
    }
    return perfetto->last_number;
}

static void hand_thread(struct perfetto *perfetto, struct event *event, int32_t track) {
    const uint64_t start = track ? perfetto->place_ends[track - 1] : 0;
    event->thread = (struct span){perfetto->places + start, (size_t)(perfetto->place_ends[track] - start)};
    event->thread_number = (int32_t *)(void *)perfetto->threads.at + track;
}

/* An event to the scanner; memory that is lacking is noted. */
static void hand_event(struct perfetto *perfetto, uint64_t id, const struct sequence *sequence,
                       const struct track_event *said, uint64_t time, int64_t duration) {
    const int32_t track = track_of(perfetto, said->track);
    const bool is_slice = said->type == TYPE_BEGIN;
    struct span name = said->name, category = said->category;
    struct handed handed;
    struct event *event = &handed.event;
    if (!name.at && said->has_name_iid) {
        name = interned(perfetto, key_of(id, sequence, INTERNED_NAME, said->name_iid));
    }
    if (!category.at && said->has_category_iid) {
        category = interned(perfetto, key_of(id, sequence, INTERNED_CATEGORY, said->category_iid));
    }
    if (!name.at || track == NEW || (size_t)track >= perfetto->place_count) {
        lose(perfetto, PERFETTO_BROKEN);
        return;
    }
    handed.placed = 0;
    perfetto->text.size = 0;
    event_begin(perfetto->scanner, event, perfetto->position);
    static const uint8_t phases[] = "\"X\"\"i\"";
    put(event, PH, phases + (is_slice ? 0 : 3), phases + (is_slice ? 3 : 6));
    put_number(event, TS, (int64_t)time);
    if (is_slice) {
        put_number(event, DUR, duration);
    }
    hand_thread(perfetto, event, track);
    if (category.at && !hand_category(perfetto, event, category)) {
        return;
    }
    const size_t start = perfetto->text.size;
    if (!put_string(perfetto, name)) {
        return;
    }
    hand_text(perfetto, &handed, NAME, start);
    event_name(perfetto->scanner, event, (struct span){perfetto->text.at + start, perfetto->text.size - start});
    if (hand_arguments(perfetto, id, sequence, said, &handed)) {
        place(perfetto, &handed);
        perfetto->no_memory |= !event_take(perfetto->scanner, event);
    }
}

static void add_mark(struct perfetto *perfetto, int32_t track, int64_t time, uint8_t kind) {
    (void)(append(perfetto, &perfetto->mark_tracks, &track, sizeof track) &&
           append(perfetto, &perfetto->mark_times, &time, sizeof time) &&
           append(perfetto, &perfetto->mark_kinds, &kind, sizeof kind));
}

/* -- packets */

struct packet {
    uint64_t time, id, flags;
    bool has_time;
    struct span event, interned, defaults, descriptor;
};

static bool read_packet(struct span message, struct packet *packet) {
    struct field field;
    *packet = (struct packet){0, 0, 0, false, {NULL, 0}, {NULL, 0}, {NULL, 0}, {NULL, 0}};
    for (const uint8_t *at = message.at, *end = at + message.size; at < end;) {
        at = next_field(at, end, &field);
        if (!at) {
            return false;
        }
        const bool is_bytes = field.wire == WIRE_BYTES;
        switch (field.tag_number) {
        case PACKET_TIMESTAMP:
            packet->time = field.value;
            packet->has_time = true;
            break;
        case PACKET_SEQUENCE: packet->id = field.value; break;
        case PACKET_FLAGS: packet->flags |= field.value & FLAG_CLEARED; break;
        case PACKET_CLEARED: packet->flags |= field.value ? FLAG_CLEARED : 0; break;
        case PACKET_EVENT: packet->event = is_bytes ? field.bytes : packet->event; break;
        case PACKET_INTERNED: packet->interned = is_bytes ? field.bytes : packet->interned; break;
        case PACKET_DEFAULTS: packet->defaults = is_bytes ? field.bytes : packet->defaults; break;
        case PACKET_DESCRIPTOR: packet->descriptor = is_bytes ? field.bytes : packet->descriptor; break;
        default: break;
        }
    }
    return true;
}

static void take_defaults(struct sequence *sequence, struct span defaults) {
    struct field field, inner;
    for (const uint8_t *at = defaults.at, *end = at + defaults.size; at && at < end;) {
        at = next_field(at, end, &field);
        if (!at || field.tag_number != DEFAULTS_EVENT || field.wire != WIRE_BYTES) {
            continue;
        }
        for (const uint8_t *in = field.bytes.at, *last = in + field.bytes.size; in && in < last;) {
            in = next_field(in, last, &inner);
            if (in && inner.tag_number == DEFAULTS_TRACK && inner.wire == WIRE_NUMBER) {
                sequence->track = inner.value;
                sequence->has_track = true;
            }
        }
    }
}

static void take_descriptor(struct perfetto *perfetto, struct span descriptor) {
    const uint32_t size = (uint32_t)descriptor.size;
    if (perfetto->descriptors.size + descriptor.size > MAX_DESCRIPTOR_BYTES) {
        lose(perfetto, PERFETTO_STRINGS);
        return;
    }
    (void)(append(perfetto, &perfetto->descriptors, &size, sizeof size) &&
           append(perfetto, &perfetto->descriptors, descriptor.at, descriptor.size));
}

/* Returns the event's type; 0 for what is none. */
static uint64_t take_event(struct perfetto *perfetto, const struct packet *packet, const struct sequence *sequence) {
    struct track_event event;
    if (!packet->has_time || packet->time > INT64_MAX || !read_event(packet->event, &event)) {
        lose(perfetto, PERFETTO_BROKEN);
        return 0;
    }
    if (!event.has_track && sequence && sequence->has_track) {
        event.track = sequence->track;
    }
    if (event.type != TYPE_BEGIN && event.type != TYPE_END && event.type != TYPE_INSTANT) {
        return event.type;
    }
    if (!perfetto->is_writing) {
        if (perfetto->last_number == NEW || perfetto->last_track != event.track) {
            perfetto->last_track = event.track;
            perfetto->last_number = number_of(perfetto, &perfetto->tracks, &event.track, sizeof event.track);
        }
        const int32_t track = perfetto->last_number;
        if (event.type != TYPE_INSTANT) {
            add_mark(perfetto, track, (int64_t)packet->time, (uint8_t)event.type);
        }
        return event.type;
    }
    int64_t duration = 0;
    if (event.type == TYPE_BEGIN) {
        duration = perfetto->begun < perfetto->beginnings ? perfetto->durations[perfetto->begun] : -1;
        perfetto->begun++;
    }
    if (event.type != TYPE_END && duration >= 0) {
        hand_event(perfetto, packet->id, sequence, &event, packet->time, duration);
    }
    return event.type;
}

/* Returns whether the packet only ends a slice: then a second reading needs nothing of it. */
static bool take_message(struct perfetto *perfetto, struct span message) {
    struct packet packet;
    if (!read_packet(message, &packet)) {
        lose(perfetto, PERFETTO_BROKEN);
        return false;
    }
    struct sequence *sequence = sequence_of(perfetto, packet.id);
    if (sequence && packet.flags) {
        sequence->generation++;
        sequence->has_track = false;
    }
    if (sequence && packet.defaults.at) {
        take_defaults(sequence, packet.defaults);
    }
    if (packet.interned.at && perfetto->is_writing && is_message(packet.interned)) {
        take_interned(perfetto, packet.id, sequence, packet.interned);
    }
    if (packet.descriptor.at && !perfetto->is_writing) {
        take_descriptor(perfetto, packet.descriptor);
    }
    const uint64_t type = packet.event.at ? take_event(perfetto, &packet, sequence) : 0;
    return type == TYPE_END && sequence && !packet.flags && !packet.defaults.at && !packet.interned.at;
}

static void take_packet(struct perfetto *perfetto, struct span message) {
    const size_t number = perfetto->taken++;
    if (!perfetto->is_writing) {
        const uint8_t only_ends = take_message(perfetto, message);
        (void)append(perfetto, &perfetto->only_end, &only_ends, sizeof only_ends);
    } else if (number >= perfetto->only_end.size || !perfetto->only_end.at[number]) {
        (void)take_message(perfetto, message);
    }
}

/* -- blocks */

/* Take as many fields of the trace as are whole; returns how many bytes they are. What is too large or of no interest
 * is taken up to its content, which `skip` counts. */
static size_t take_fields(struct perfetto *perfetto, const uint8_t *bytes, size_t size) {
    const uint8_t *at = bytes, *end = bytes + size;
    const uint64_t start = perfetto->position;
    perfetto->needed = 0;
    while (at < end && !perfetto->skip && !perfetto->no_memory) {
        bool cut = false;
        uint64_t tag = 0, length = 0;
        perfetto->position = start + (uint64_t)(at - bytes);
        const uint8_t *next = number_at(at, end, &tag, &cut);
        const int wire = (int)(tag & 7);
        const bool begins_field =
            tag >> 3 && (wire == WIRE_BYTES || wire == WIRE_NUMBER || wire == WIRE_EIGHT || wire == WIRE_FOUR);
        if (next && begins_field && (wire == WIRE_BYTES || wire == WIRE_NUMBER)) {
            next = number_at(next, end, &length, &cut);
        }
        if (!next && cut) {
            perfetto->needed = (size_t)(end - at) + 1;
            break;
        }
        if (!next || !begins_field) {
            perfetto->is_astray = true;
            break;
        }
        if (wire != WIRE_BYTES) {
            perfetto->skip = wire == WIRE_EIGHT ? 8 : wire == WIRE_FOUR ? 4 : 0;
        } else if (tag >> 3 != TRACE_PACKET || length > perfetto->max_packet) {
            if (tag >> 3 == TRACE_PACKET) {
                lose(perfetto, PERFETTO_LARGE);
            }
            perfetto->skip = length;
        } else if (length > (uint64_t)(end - next)) {
            perfetto->needed = (size_t)(next - at) + (size_t)length;
            break;
        } else {
            take_packet(perfetto, (struct span){next, (size_t)length});
            next += length;
        }
        at = next;
    }
    perfetto->position = start + (uint64_t)(at - bytes);
    return (size_t)(at - bytes);
}

static int feed(struct perfetto *perfetto, const uint8_t *bytes, size_t size) {
    struct bytes *carry = &perfetto->carry;
    while (size && !perfetto->is_astray && !perfetto->no_memory) {
        size_t used;
        if (perfetto->skip) {
            used = perfetto->skip < size ? (size_t)perfetto->skip : size;
            perfetto->skip -= used;
            perfetto->position += used;
        } else if (carry->size) {
            /* No more than the packet that it begins takes: then either all of it is used, or nothing. */
            const size_t missing = perfetto->needed - carry->size;
            used = missing < size ? missing : size;
            if (append(perfetto, carry, bytes, used) && carry->size == perfetto->needed &&
                take_fields(perfetto, carry->at, carry->size)) {
                carry->size = 0;
            }
        } else {
            used = take_fields(perfetto, bytes, size);
            if (!perfetto->skip && used < size && !perfetto->is_astray && append(perfetto, carry, bytes + used, size - used)) {
                used = size;
            }
        }
        bytes += used;
        size -= used;
    }
    return !perfetto->no_memory;
}

/* -- for the caller */

static void clear_vocabulary(struct vocabulary *vocabulary, uint32_t max_strings) {
    vocabulary_free(vocabulary);
    memset(vocabulary, 0, sizeof *vocabulary);
    vocabulary->max_strings = max_strings;
}

struct perfetto *perfetto_new(size_t max_packet_bytes, uint32_t max_strings) {
    struct perfetto *perfetto = calloc(1, sizeof *perfetto);
    if (!perfetto) {
        return NULL;
    }
    perfetto->max_packet = max_packet_bytes;
    perfetto->max_strings = perfetto->tracks.max_strings = perfetto->sequences.max_strings =
        perfetto->strings.max_strings = max_strings;
    perfetto->last_number = perfetto->last_sequence = NEW;
    return perfetto;
}

void perfetto_free(struct perfetto *perfetto) {
    if (!perfetto) {
        return;
    }
    struct bytes *const all[] = {&perfetto->carry,       &perfetto->text,       &perfetto->descriptors,
                                 &perfetto->names,       &perfetto->states,     &perfetto->texts,
                                 &perfetto->mark_tracks, &perfetto->mark_times, &perfetto->mark_kinds,
                                 &perfetto->only_end,    &perfetto->threads};
    for (size_t index = 0; index < sizeof all / sizeof *all; index++) {
        free(all[index]->at);
    }
    vocabulary_free(&perfetto->tracks);
    vocabulary_free(&perfetto->sequences);
    vocabulary_free(&perfetto->strings);
    free(perfetto);
}

int perfetto_survey(struct perfetto *perfetto, const uint8_t *bytes, size_t size) {
    return feed(perfetto, bytes, size);
}

int perfetto_rewind(struct perfetto *perfetto, struct scanner *scanner, const uint8_t *places,
                    const uint64_t *place_ends, size_t tracks, const int64_t *durations, size_t beginnings) {
    static const int32_t unknown = NEW;
    perfetto->is_writing = true;
    perfetto->is_astray = false;
    perfetto->position = perfetto->skip = 0;
    perfetto->taken = 0;
    perfetto->carry.size = perfetto->states.size = perfetto->names.size = perfetto->texts.size = 0;
    perfetto->last_number = perfetto->last_sequence = NEW;
    clear_vocabulary(&perfetto->sequences, perfetto->max_strings);
    clear_vocabulary(&perfetto->strings, perfetto->max_strings);
    perfetto->scanner = scanner;
    perfetto->places = places;
    perfetto->place_ends = place_ends;
    perfetto->place_count = tracks;
    perfetto->durations = durations;
    perfetto->beginnings = beginnings;
    perfetto->begun = 0;
    memset(perfetto->lost, 0, sizeof perfetto->lost);
    for (size_t track = 0; track < tracks && append(perfetto, &perfetto->threads, &unknown, sizeof unknown); track++) {
    }
    return !perfetto->no_memory;
}

int perfetto_scan(struct perfetto *perfetto, const uint8_t *bytes, size_t size) {
    return feed(perfetto, bytes, size);
}

size_t perfetto_marks(const struct perfetto *perfetto, const int32_t **tracks, const int64_t **times,
                      const uint8_t **kinds) {
    *tracks = (const int32_t *)(const void *)perfetto->mark_tracks.at;
    *times = (const int64_t *)(const void *)perfetto->mark_times.at;
    *kinds = perfetto->mark_kinds.at;
    return perfetto->mark_kinds.size;
}

size_t perfetto_tracks(const struct perfetto *perfetto, const uint8_t **uuids) {
    *uuids = perfetto->tracks.bytes;
    return perfetto->tracks.count;
}

const uint8_t *perfetto_descriptors(const struct perfetto *perfetto, size_t *size) {
    *size = perfetto->descriptors.size;
    return perfetto->descriptors.at;
}

uint64_t perfetto_position(const struct perfetto *perfetto) {
    return perfetto->position;
}

int perfetto_end(const struct perfetto *perfetto) {
    const bool is_within = perfetto->carry.size || perfetto->skip;
    return perfetto->is_astray ? PERFETTO_ASTRAY : is_within ? PERFETTO_WITHIN : PERFETTO_WHOLE;
}

uint64_t perfetto_lost(const struct perfetto *perfetto, int loss, uint64_t *position) {
    *position = perfetto->first_lost[loss];
    return perfetto->lost[loss];
}

void perfetto_pair(size_t marks, const int32_t *tracks, const int64_t *times, const uint8_t *kinds,
                   const int64_t *order, const int64_t *numbers, size_t all_tracks, int64_t *top, int64_t *below,
                   int64_t *durations) {
    int64_t begun = 0;
    for (size_t track = 0; track < all_tracks; track++) {
        top[track] = -1;
    }
    for (size_t place = 0; place < marks; place++) {
        const size_t mark = order ? (size_t)order[place] : place;
        const int32_t track = tracks[mark];
        if (kinds[mark] == PERFETTO_BEGINS) {
            const int64_t number = order ? numbers[mark] : begun++;
            durations[number] = track < 0 ? -1 : times[mark]; /* the start, until it ends */
            if (track >= 0) {
                below[number] = top[track];
                top[track] = number;
            }
        } else if (track >= 0 && top[track] >= 0) {
            const int64_t number = top[track];
            top[track] = below[number];
            durations[number] = times[mark] - durations[number];
        }
    }
    for (size_t track = 0; track < all_tracks; track++) {
        for (int64_t number = top[track]; number >= 0; number = below[number]) {
            durations[number] = -1;
        }
    }
}
