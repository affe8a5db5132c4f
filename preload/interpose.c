/* Our dlsym and dlvsym. Apart from lookup.c, since a program under a sanitizer has that one's own. */
#include "recorder.h"

/* In assembler, since RTLD_NEXT and RTLD_DEFAULT go by the return address: the real function must be jumped to, not called.
 * The filter's fourth argument is that address. st_glibc_dlsym and st_glibc_dlvsym are what one gets who asks for glibc's by version:
 * what preloads behind ours make of them is not for him. */
extern void *st_glibc_dlsym(void *handle, const char *name) __attribute__((visibility("hidden")));
extern void *st_glibc_dlvsym(void *handle, const char *name, const char *version) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
#define LOOKUP(symbol, filter, real, version)                                                                                                        \
    __asm__(".text\n.globl " symbol "\n.type " symbol ", @function\n" symbol ":\n"                                                            \
            "    endbr64\n    push %rdi\n    push %rsi\n    push %rdx\n    mov 24(%rsp), %rcx\n" version                            \
            "    call " filter "\n"                                                                                                  \
            "    pop %rdx\n    pop %rsi\n    pop %rdi\n    test %rax, %rax\n    jne 1f\n"                                                      \
            "    mov " real "@GOTPCREL(%rip), %rax\n    jmp *(%rax)\n1:  ret\n.size " symbol ", .-" symbol "\n")
LOOKUP("dlsym", "st_lookup_filter", "st_next_dlsym", "    xor %edx, %edx\n");
LOOKUP("st_glibc_dlsym", "st_lookup_filter_glibc", "st_real_dlsym", "    xor %edx, %edx\n");
LOOKUP("dlvsym", "st_lookup_filter", "st_next_dlvsym", "");
LOOKUP("st_glibc_dlvsym", "st_lookup_filter_glibc", "st_real_dlvsym", "");
#else
#define LOOKUP(symbol, filter, real, version)                                                                                                        \
    __asm__(".text\n.globl " symbol "\n.type " symbol ", @function\n" symbol ":\n"                                                            \
            "    stp x29, x30, [sp, #-48]!\n    stp x0, x1, [sp, #16]\n    str x2, [sp, #32]\n    mov x3, x30\n" version                            \
            "    bl " filter "\n"                                                                                                    \
            "    mov x9, x0\n    ldp x0, x1, [sp, #16]\n    ldr x2, [sp, #32]\n    ldp x29, x30, [sp], #48\n    cbnz x9, 1f\n"                  \
            "    adrp x10, :got:" real "\n    ldr x10, [x10, :got_lo12:" real "]\n    ldr x10, [x10]\n    br x10\n"                             \
            "1:  mov x0, x9\n    ret\n.size " symbol ", .-" symbol "\n")
LOOKUP("dlsym", "st_lookup_filter", "st_next_dlsym", "    mov x2, xzr\n");
LOOKUP("st_glibc_dlsym", "st_lookup_filter_glibc", "st_real_dlsym", "    mov x2, xzr\n");
LOOKUP("dlvsym", "st_lookup_filter", "st_next_dlvsym", "");
LOOKUP("st_glibc_dlvsym", "st_lookup_filter_glibc", "st_real_dlvsym", "");
#endif
