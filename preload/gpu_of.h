/* Whose memory an address is. */
#ifndef ST_GPU_OF_H
#define ST_GPU_OF_H

#include <stdbool.h>
#include <stdint.h>

/* The GPU whose memory an address is. Fields are 0 where that is not known. */
struct gpu {
    unsigned ordinal;
    uint64_t context;
    uint8_t uuid[16];
    unsigned uuid_size;
};
/* false: of no GPU, as far as the process's driver knows. errno is kept. */
bool gpu_of(const void *p, struct gpu *out);

#endif
