/* The lines of NCCL in a log. `tb_ddp_doctor/nccl_logs/lines.py` has the same declarations. */
#ifndef NCCL_LINES_H
#define NCCL_LINES_H

#include <stddef.h>
#include <stdint.h>

#include "api.h"

enum nccl_line_kind { NCCL_OTHER, NCCL_CALL, NCCL_CHOICE };

struct nccl_line {
    /* In the block. */
    uint64_t start, end;
    /* The same for lines that say the same; of calls, whatever their addresses and their `op_count`. */
    uint64_t key;
    /* The same for lines of one thread. */
    uint64_t process;
    /* Of calls: how many the communicator had before, and its address; 0 where that is not said. */
    uint64_t op_count, communicator;
    uint64_t kind;
};

/* The smallest line of NCCL has so many bytes: there is room for all if there is room for one in each. */
enum { NCCL_SHORTEST_LINE = 10 };

/* Find the lines of NCCL in whole lines of text: returns how many. `lines` becomes the number of all lines. */
NATIVE_API size_t nccl_lines(const uint8_t *text, size_t size, struct nccl_line *found, size_t room, size_t *lines);

#endif
