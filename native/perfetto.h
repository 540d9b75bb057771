/* Reads a trace of Perfetto's packets, as torch's export_chrome_trace("x.pftrace") writes it, to a scanner's columns.
 *
 * The bytes are read twice, in blocks that are cut anywhere. The first time, `perfetto_survey` notes when each slice of
 * a track begins and ends, and the descriptions of tracks; the caller pairs ends with beginnings (`perfetto_pair`) and
 * says what thread each track is. The second time, `perfetto_scan` hands each slice to a scanner as a complete event
 * with its duration, in the order in which they begin in the file. No text is written in between: an event takes half
 * of the time that it took with.
 *
 * Supported: TracePackets, interned names with their state per sequence, default tracks, packets in any order of time,
 * debug annotations of all types, as arguments; "correlation" is otherwise the event's correlation id, or its first
 * flow.
 *
 * Ignored: counters, legacy events, extensions, and all else that a TracePacket can hold. Packets that are compressed, in
 * other clocks than the trace's, or render stages of a GPU come here rewritten (trace/pftrace/plain.py). A packet that is none is passed over and counted; a length that leads astray ends the reading.
 *
 * Memory: 14 bytes for each beginning and end, the strings, which have limits, a packet that is cut by a block's end,
 * and the scanner's rows.
 */
#ifndef DDP_DOCTOR_PERFETTO_H
#define DDP_DOCTOR_PERFETTO_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

enum perfetto_mark { PERFETTO_BEGINS = 1, PERFETTO_ENDS = 2 };

enum perfetto_loss {
    PERFETTO_BROKEN,    /* packets that are none, and those of events that lack a time, a track or a name */
    PERFETTO_LARGE,     /* packets beyond the limit */
    PERFETTO_ARGUMENTS, /* events that lost arguments */
    PERFETTO_STRINGS,   /* beyond the limits on tracks, sequences and interned strings */
    PERFETTO_LOSSES,
};

enum perfetto_end {
    PERFETTO_WHOLE,  /* between two packets */
    PERFETTO_WITHIN, /* within one */
    PERFETTO_ASTRAY, /* at what begins no packet: what follows it is not read */
};

struct perfetto;
struct scanner;

/* NULL: no memory. */
NATIVE_API struct perfetto *perfetto_new(size_t max_packet_bytes, uint32_t max_strings);
NATIVE_API void perfetto_free(struct perfetto *perfetto);

/* Read a block for the first time. Zero: no memory, and nothing but `perfetto_free` may follow. */
NATIVE_API int perfetto_survey(struct perfetto *perfetto, const uint8_t *bytes, size_t size);
/* Begin to read for the second time, with events going to a scanner that has been fed nothing. For each track, by its
 * number, `places` has its process and its thread, two JSON values with a comma between, which end at `place_ends`;
 * `durations` has one for each beginning, -1 for those to be left out. The caller keeps all four. Also forgets what was
 * lost. Zero: no memory. */
NATIVE_API int perfetto_rewind(struct perfetto *perfetto, struct scanner *scanner, const uint8_t *places,
                               const uint64_t *place_ends, size_t tracks, const int64_t *durations, size_t beginnings);
/* Read a block for the second time. Zero: as above. */
NATIVE_API int perfetto_scan(struct perfetto *perfetto, const uint8_t *bytes, size_t size);

/* Beginnings and ends in the file's order: each one's track, time in ns and `enum perfetto_mark`. */
NATIVE_API size_t perfetto_marks(const struct perfetto *perfetto, const int32_t **tracks, const int64_t **times,
                                 const uint8_t **kinds);
/* The tracks by number: eight bytes of each one's uuid, in the machine's order. */
NATIVE_API size_t perfetto_tracks(const struct perfetto *perfetto, const uint8_t **uuids);
/* TrackDescriptors, each behind four bytes of its size in the machine's order. */
NATIVE_API const uint8_t *perfetto_descriptors(const struct perfetto *perfetto, size_t *size);
/* Where the first packet that is not done with begins; and how the bytes end there, an `enum perfetto_end`. */
NATIVE_API uint64_t perfetto_position(const struct perfetto *perfetto);
NATIVE_API int perfetto_end(const struct perfetto *perfetto);
/* How much was lost for one reason; `position` is that of the first packet. */
NATIVE_API uint64_t perfetto_lost(const struct perfetto *perfetto, int loss, uint64_t *position);

/* The duration of each beginning, in ns, by its number in the file's order; -1 without an end. An end is that of the
 * slice of its track that began last and has not ended. `order` has the marks in order of time, and `numbers` the number
 * of each mark that is a beginning; both are NULL where the file's order is that of time. `top` has room for each track,
 * `below` for each beginning; they are overwritten. */
NATIVE_API void perfetto_pair(size_t marks, const int32_t *tracks, const int64_t *times, const uint8_t *kinds,
                              const int64_t *order, const int64_t *numbers, size_t all_tracks, int64_t *top,
                              int64_t *below, int64_t *durations);

#endif
