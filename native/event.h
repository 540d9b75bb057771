/* What is read of an event before its row is written: by scanner.c from text, by perfetto.c from packets.
 *
 * A value is a JSON value as text spells it, or an integer. What the values mean is asked by `event_take` alone, so that
 * both formats give the same rows.
 */
#ifndef DDP_DOCTOR_EVENT_H
#define DDP_DOCTOR_EVENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "json.h"
#include "scanner.h"
#include "vocabulary.h"

enum value {
    /* Members of an event. */
    PH,
    CAT,
    NAME,
    PID,
    TID,
    TS,
    DUR,
    ARGS,
    /* Members of its "args". */
    DEVICE,
    STREAM,
    CORRELATION,
    BYTES,
    GRID,
    INPUT_DIMS,
    INPUT_TYPE,
    COLLECTIVE,
    GROUP,
    GROUP_RANKS,
    GROUP_SIZE,
    ELEMENTS_IN,
    ELEMENTS_OUT,
    DTYPE,
    SEQ,
    CONCRETE_INPUTS,
    CHANGE,
    DEVICE_ID,
    DEVICE_TYPE,
    TOTAL_ALLOCATED,
    TOTAL_RESERVED,
    ADDRESS,
    SOURCE,
    DESTINATION,
    OCCUPANCY,
    SEQUENCE_NUMBER,
    ANNOTATION,
    ANNOTATED_NAME,
    ANNOTATED_TEXT,
    AUTOGRAD_PHASE,
    KERNEL_FILE,
    GRAPH,
    GRAPH_NODE,
    /* What the CUPTI monitor in torch writes of a copy, whose name is "Memcpy". */
    COPY_KIND,
    COPY_SOURCE,
    COPY_DESTINATION,
    /* What NCCL's profiler plugin in torch writes of a collective. */
    FUNC,
    DATATYPE,
    COUNT,
    NCCL_SEQ,
    PROCESS_GROUP,
    PROCESS_GROUP_RANKS,
    ALGO,
    PROTO,
    N_CHANNELS,
    /* Of no interest. */
    OTHER,
    VALUES,
    /* None of an event. */
    NOTHING = VALUES,
};

/* A text that stands at `at`, if it has a number in its vocabulary already. */
struct known {
    const uint8_t *at;
    int32_t number;
};

/* Values as they are spelled; of members that come twice, the last. */
struct event {
    uint64_t present; /* a bit for each value: to clear the others would cost a tenth of all time */
    struct span values[VALUES];
    struct known name, shape, types, inputs;
    uint64_t position;
    uint64_t wanted; /* bits of those arguments that its row may want */
    uint8_t kind;    /* START, then 0, or 1 more than the code of its category, once that is known */
    uint8_t gap;     /* in `scanner.gaps`: the last one */
    int32_t category; /* in SCANNER_CATEGORIES */
    bool has_category;
    /* Of packets alone. */
    uint64_t integers;      /* of `present`, those that stand in `numbers`, times in ns; others are spelled in `values` */
    struct span thread;     /* its key in SCANNER_THREADS, in place of PID and TID */
    int32_t *thread_number; /* of `thread`: NEW until it is asked for */
    int64_t numbers[VALUES];
};

#define BIT(value) (UINT64_C(1) << (value))

/* Numbers, which are judged digit by digit when they are used. */
static const uint64_t NUMBERS = BIT(TS) | BIT(DUR) | BIT(DEVICE) | BIT(STREAM) | BIT(CORRELATION) | BIT(BYTES) |
                                BIT(GROUP_SIZE) | BIT(ELEMENTS_IN) | BIT(ELEMENTS_OUT) | BIT(SEQ) | BIT(CHANGE) |
                                BIT(DEVICE_ID) | BIT(DEVICE_TYPE) | BIT(TOTAL_ALLOCATED) | BIT(TOTAL_RESERVED) |
                                BIT(ADDRESS) | BIT(SOURCE) | BIT(DESTINATION) | BIT(OCCUPANCY) | BIT(SEQUENCE_NUMBER) |
                                BIT(COUNT) | BIT(NCCL_SEQ) | BIT(N_CHANNELS) | BIT(GRAPH) | BIT(GRAPH_NODE);

static inline void put(struct event *event, enum value value, const uint8_t *at, const uint8_t *end) {
    event->present |= BIT(value);
    event->values[value] = (struct span){at, (size_t)(end - at)};
}

/* Of an event that may have integers. */
static inline void put_spelled(struct event *event, enum value value, const uint8_t *at, const uint8_t *end) {
    put(event, value, at, end);
    event->integers &= ~BIT(value);
}

static inline void put_number(struct event *event, enum value value, int64_t number) {
    event->present |= BIT(value);
    event->integers |= BIT(value);
    event->numbers[value] = number;
}

/* As it is spelled. Size 0 is missing; not to be asked of an integer that stands in `numbers`. */
static inline struct span get(const struct event *event, enum value value) {
    return event->present >> value & 1 ? event->values[value] : (struct span){NULL, 0};
}

static inline bool is(struct span key, const char *name, size_t size) {
    return key.size == size && !memcmp(key.at, name, size);
}

#define IS(key, name) is(key, name, sizeof(name) - 1)

static inline enum value argument_of(struct span key) {
    switch (key.size) {
    case 3: return IS(key, "Seq") ? SEQ : IS(key, "str") ? ANNOTATED_TEXT : IS(key, "seq") ? NCCL_SEQ : OTHER;
    case 4:
        return IS(key, "grid")   ? GRID
               : IS(key, "Addr") ? ADDRESS
               : IS(key, "name") ? ANNOTATED_NAME
               : IS(key, "func") ? FUNC
               : IS(key, "algo") ? ALGO
                                 : OTHER;
    case 5:
        return IS(key, "bytes")   ? BYTES
               : IS(key, "dtype") ? DTYPE
               : IS(key, "Bytes") ? CHANGE
               : IS(key, "proto") ? PROTO
               : IS(key, "count") ? COUNT
                                  : OTHER;
    case 6: return IS(key, "device") ? DEVICE : IS(key, "stream") ? STREAM : OTHER;
    case 8:
        return IS(key, "Src Rank")   ? SOURCE
               : IS(key, "Dst Rank") ? DESTINATION
               : IS(key, "datatype") ? DATATYPE
               : IS(key, "graph id") ? GRAPH
               : IS(key, "src kind") ? COPY_SOURCE
               : IS(key, "dst kind") ? COPY_DESTINATION
                                     : OTHER;
    case 9: return IS(key, "Device Id") ? DEVICE_ID : IS(key, "copy kind") ? COPY_KIND : OTHER;
    case 10:
        return IS(key, "Input Dims")   ? INPUT_DIMS
               : IS(key, "Input type") ? INPUT_TYPE
               : IS(key, "Group size") ? GROUP_SIZE
               : IS(key, "annotation") ? ANNOTATION
               : IS(key, "n_channels") ? N_CHANNELS
                                       : OTHER;
    case 11:
        return IS(key, "correlation")   ? CORRELATION
               : IS(key, "Device Type") ? DEVICE_TYPE
               : IS(key, "kernel_file") ? KERNEL_FILE
                                        : OTHER;
    case 13:
        return IS(key, "In msg nelems")   ? ELEMENTS_IN
               : IS(key, "process_group") ? PROCESS_GROUP
               : IS(key, "graph node id") ? GRAPH_NODE
                                          : OTHER;
    case 14:
        return IS(key, "Out msg nelems")   ? ELEMENTS_OUT
               : IS(key, "Total Reserved") ? TOTAL_RESERVED
               : IS(key, "autograd_phase") ? AUTOGRAD_PHASE
                                           : OTHER;
    case 15:
        return IS(key, "Collective name")   ? COLLECTIVE
               : IS(key, "Concrete Inputs") ? CONCRETE_INPUTS
               : IS(key, "Total Allocated") ? TOTAL_ALLOCATED
               : IS(key, "Sequence number") ? SEQUENCE_NUMBER
                                            : OTHER;
    case 18: return IS(key, "Process Group Name") ? GROUP : OTHER;
    case 19:
        return IS(key, "Process Group Ranks")   ? GROUP_RANKS
               : IS(key, "process_group_ranks") ? PROCESS_GROUP_RANKS
                                                : OTHER;
    case 25: return IS(key, "est. achieved occupancy %") ? OCCUPANCY : OTHER;
    default: return OTHER;
    }
}

/* -- for perfetto.c */

/* An event of which nothing is known; `position` is where it stands in its file. */
void event_begin(const struct scanner *scanner, struct event *event, uint64_t position);
/* Its category's number among SCANNER_CATEGORIES, for a JSON string. */
int32_t event_category(struct scanner *scanner, struct event *event, struct span category);
/* The same for a number that `event_category` has given. */
void event_known_category(const struct scanner *scanner, struct event *event, int32_t number);
/* Its name, a JSON string. `event.wanted` then says which arguments its row may want. */
void event_name(struct scanner *scanner, struct event *event, struct span name);
/* The end of a JSON value that an argument has, which may be known; NULL where it is no JSON. */
const uint8_t *event_json(struct scanner *scanner, struct event *event, enum value argument, struct span json);
/* Write its row, if it has one. False: no memory. */
bool event_take(struct scanner *scanner, struct event *event);

#endif
