#include "textflag.h"

// func entry()
//
// The kernel jumps here, argc at the stack pointer and no stack frame of a caller's.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	SUBQ $64, SP
	MOVQ $1, R12 // the signal
	MOVQ $0, R13 // the set of ignored ones
signal:
	MOVQ R12, DI
	MOVQ $0, SI  // no new action
	MOVQ SP, DX  // the old one; its first word is the handler
	MOVQ $8, R10
	MOVQ $13, AX // rt_sigaction
	SYSCALL
	CMPQ AX, $0
	JNE next
	CMPQ 0(SP), $1 // SIG_IGN
	JNE next
	MOVQ R12, CX
	DECQ CX
	MOVQ $1, AX
	SHLQ CX, AX
	ORQ AX, R13
next:
	INCQ R12
	CMPQ R12, $64
	JLE signal
	MOVQ R13, ·ignoredAtStart(SB)
	MOVQ $0, R12 // the descriptor
	MOVQ $0, R13 // the set of closed ones
file:
	MOVQ R12, DI
	MOVQ $1, SI  // F_GETFD
	MOVQ $72, AX // fcntl
	SYSCALL
	CMPQ AX, $0
	JGE open
	MOVQ R12, CX
	MOVQ $1, AX
	SHLQ CX, AX
	ORQ AX, R13
open:
	INCQ R12
	CMPQ R12, $3
	JLT file
	MOVQ R13, ·closedAtStart(SB)
	ADDQ $64, SP
	MOVQ $0, DX
	JMP _rt0_amd64_linux(SB)
