/* CRC-32C (Castagnoli, reflected polynomial 0x82f63b78; RFC 3720 appendix B.4). */
#include "internal.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

__attribute__((unused)) static uint32_t by_table(const uint8_t *p, size_t n)
{
    uint32_t c = ~0u;
    while (n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (0x82f63b78u & -(c & 1));
    }
    return ~c;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_hardware(const uint8_t *p, size_t n)
{
    uint64_t c = ~0u;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        c = __builtin_ia32_crc32di(c, word);
    }
    while (n--)
        c = __builtin_ia32_crc32qi((uint32_t)c, *p++);
    return ~(uint32_t)c;
}
#endif

uint32_t st_crc32c(const uint8_t *p, size_t n)
{
#if defined(__x86_64__)
    /* Asked when it is first needed: __builtin_cpu_supports asks in a constructor, in every program, and in a virtual machine each CPUID
     * is an exit to the hypervisor (70 us in all). */
    static int known; /* 1: has it, -1: has not */
    int has = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!has) {
        unsigned a, b, c, d;
        has = __get_cpuid(1, &a, &b, &c, &d) && c & bit_SSE4_2 ? 1 : -1;
        __atomic_store_n(&known, has, __ATOMIC_RELAXED);
    }
    if (has > 0)
        return by_hardware(p, n);
#endif
    return by_table(p, n);
}
