/* Scans the events of a Kineto trace: JSON text that comes in blocks, to columns of numbers.
 *
 * The text begins behind the "[" of the list of events and ends anywhere. What stands around the list is the caller's.
 *
 * Supported: events in any layout and with their members in any order; numbers bare or as text, times with any number
 * of decimals or an exponent; JSON as broken as `json.h` takes it. An event that is no JSON is skipped up to the next
 * that begins as writers of traces begin them; a loss says where and why.
 *
 * Ignored: members and arguments that `enum value` in scanner.c does not name or that the event's category has no column
 * for, keys that are spelled with escapes. They are passed over by their quotes and brackets; whether they are JSON is
 * asked only where these do not tell where they end.
 *
 * Kept: complete events ("ph": "X") of the categories that the caller names, and what the allocator did, instant events
 * ("ph": "i") of one category and one name; of Python functions, those that last. Strings stay as the file spells them, with
 * their quotes; the caller decodes each of them once. What is an integer only to a lenient eye ("1.0") is the caller's
 * to judge too: it is told in a table of its own.
 *
 * Memory: the rows; the vocabularies, which have limits; an event that goes on in the next block, which has one too.
 * Columns are handed over, not copied.
 */
#ifndef DDP_DOCTOR_SCANNER_H
#define DDP_DOCTOR_SCANNER_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

/* native.py mirrors every enumeration here; raise it with any change. */
enum { SCANNER_VERSION = 25 };

enum scanner_status {
    SCANNER_MORE,      /* within the list */
    SCANNER_LIST_END,  /* at its "]" */
    SCANNER_CUT,       /* the text ended within the list */
    SCANNER_NO_MEMORY, /* of no use any more, but to be freed */
};

/* As `model.Category`; the events of the last two have tables of their own. */
enum scanner_category {
    SCANNER_OP,
    SCANNER_ANNOTATION,
    SCANNER_RUNTIME,
    SCANNER_KERNEL,
    SCANNER_MEMCPY,
    SCANNER_MEMSET,
    SCANNER_OVERHEAD,
    SCANNER_MTIA,
    SCANNER_MTIA_INSIGHT,
    SCANNER_MTIA_WORKLOADD,
    SCANNER_HPU,
    SCANNER_INSTANT,
    SCANNER_FRAME,
};

/* Shorter Python functions are dropped, ns, but for calls of modules: they are nine in ten of all events where there are
   any. */
enum { SCANNER_SHORTEST_FRAME = 100000 };

enum scanner_table { SCANNER_EVENTS, SCANNER_COMMS, SCANNER_MEMORY, SCANNER_FRAMES, SCANNER_ODDITIES, SCANNER_TABLES };

/* Columns of SCANNER_EVENTS, as `model.Events`. */
enum scanner_event_column {
    EVENT_NAME,
    EVENT_CATEGORY,
    EVENT_START,
    EVENT_DURATION,
    EVENT_THREAD,
    EVENT_DEVICE,
    EVENT_STREAM,
    EVENT_CORRELATION,
    EVENT_BYTES,
    EVENT_SHAPE,
    EVENT_OCCUPANCY,
    EVENT_SEQUENCE,
    EVENT_TYPES,
    EVENT_VALUES,
    EVENT_GRAPH,
};

/* Columns of SCANNER_COMMS, as `model.CommArgs`. */
enum scanner_comm_column {
    COMM_EVENT,
    COMM_COLLECTIVE,
    COMM_GROUP,
    COMM_GROUP_RANKS,
    COMM_GROUP_SIZE,
    COMM_ELEMENTS_IN,
    COMM_ELEMENTS_OUT,
    COMM_DTYPE,
    COMM_SEQUENCE,
    COMM_PEER,
    COMM_COUNT,
    COMM_ALGORITHM,
    COMM_PROTOCOL,
    COMM_CHANNELS,
};

/* Columns of SCANNER_MEMORY, as `model.MemoryEvents`. */
enum scanner_memory_column {
    MEMORY_TIME,
    MEMORY_DEVICE_TYPE,
    MEMORY_DEVICE,
    MEMORY_BYTES,
    MEMORY_ALLOCATED,
    MEMORY_RESERVED,
    MEMORY_ADDRESS,
    MEMORY_THREAD,
};

/* Columns of SCANNER_FRAMES, as `model.Frames`. */
enum scanner_frame_column {
    FRAME_NAME,
    FRAME_START,
    FRAME_DURATION,
    FRAME_THREAD,
};

/* Columns of SCANNER_ODDITIES: values that are no plain integer where one belongs; their cells are -1. */
enum scanner_oddity_column { ODDITY_TABLE, ODDITY_COLUMN, ODDITY_ROW, ODDITY_VALUE, ODDITY_POSITION };

enum scanner_vocabulary {
    SCANNER_TEXTS,      /* names and metadata: JSON values */
    SCANNER_SHAPES,     /* "Input Dims", "Input type", "Concrete Inputs" and "grid": JSON values */
    SCANNER_THREADS,    /* pid and tid: two JSON values with a comma between */
    SCANNER_CATEGORIES, /* "cat", or "ph" of events without: a JSON string */
    SCANNER_VALUES,     /* ODDITY_VALUE: JSON values */
    SCANNER_VOCABULARIES,
};

enum scanner_loss_kind { LOSS_BROKEN, LOSS_MISTYPED, LOSS_TIMES, LOSS_ARGUMENTS, LOSS_KINDS };

enum { SCANNER_EXCERPT = 32 };

/* Events that were lost for one kind of reason; position and detail are the first one's. */
struct scanner_loss {
    uint64_t count;
    uint64_t position;
    const char *detail;
    /* LOSS_TIMES: "ts" and "dur" as they are spelled. */
    char start[SCANNER_EXCERPT + 1], duration[SCANNER_EXCERPT + 1];
};

struct scanner;

NATIVE_API int scanner_version(void);

/* `position` is that of the text's first byte, for losses. `communication` is the name, a JSON string, of those host
 * events that carry metadata of communication, `memory` that of the instants that are kept. NULL: no memory. */
NATIVE_API struct scanner *scanner_new(uint64_t position, const char *communication, const char *memory,
                                       uint64_t max_event_bytes, uint32_t max_strings);
/* Keep events of a category, a JSON string; what is not named is dropped and counted. False: no memory. */
NATIVE_API int scanner_keep(struct scanner *scanner, const char *category, int code);

/* Returns an `enum scanner_status`. Text that follows the list's end is kept for `scanner_rest`. */
NATIVE_API int scanner_feed(struct scanner *scanner, const uint8_t *text, size_t size);
/* The text has ended. */
NATIVE_API int scanner_finish(struct scanner *scanner);
NATIVE_API void scanner_free(struct scanner *scanner);

/* What is done with: all bytes before this position. */
NATIVE_API uint64_t scanner_position(const struct scanner *scanner);
/* What has been fed and is not done with. */
NATIVE_API const uint8_t *scanner_rest(const struct scanner *scanner, size_t *size);
/* Events, kept or not, that have a "ph". */
NATIVE_API uint64_t scanner_seen(const struct scanner *scanner);
NATIVE_API const struct scanner_loss *scanner_lost(const struct scanner *scanner, int kind);
/* Events dropped, for each of SCANNER_CATEGORIES. */
NATIVE_API const uint64_t *scanner_dropped(const struct scanner *scanner);

NATIVE_API size_t scanner_rows(const struct scanner *scanner, int table);
/* A column becomes the caller's, to be released; NULL if it has no rows or was taken. */
NATIVE_API void *scanner_take(struct scanner *scanner, int table, int column);
NATIVE_API void scanner_release(void *column);

/* Strings of a vocabulary, how many, where each ends in its bytes, and where each was first seen. */
NATIVE_API size_t scanner_strings(const struct scanner *scanner, int vocabulary, const uint8_t **bytes,
                                   const uint64_t **ends, const uint64_t **positions);
/* Replace each number of a column by what `map` has for it; -1 stays. */
NATIVE_API void scanner_remap(int32_t *column, size_t rows, const int32_t *map);

#endif
