#include "textflag.h"

// func entry()
//
// The kernel jumps here, argc at the stack pointer and no stack frame of a caller's.
TEXT ·entry(SB), NOSPLIT|NOFRAME, $0
	SUB $64, RSP
	MOVD $1, R9  // the signal
	MOVD $0, R10 // the set of ignored ones
signal:
	MOVD R9, R0
	MOVD $0, R1   // no new action
	MOVD RSP, R2  // the old one; its first word is the handler
	MOVD $8, R3
	MOVD $134, R8 // rt_sigaction
	SVC
	CBNZ R0, next
	MOVD 0(RSP), R11
	CMP $1, R11 // SIG_IGN
	BNE next
	SUB $1, R9, R12
	MOVD $1, R13
	LSL R12, R13, R13
	ORR R13, R10, R10
next:
	ADD $1, R9
	CMP $64, R9
	BLE signal
	MOVD R10, ·ignoredAtStart(SB)
	MOVD $0, R9  // the descriptor
	MOVD $0, R10 // the set of closed ones
file:
	MOVD R9, R0
	MOVD $1, R1  // F_GETFD
	MOVD $25, R8 // fcntl
	SVC
	CMP $0, R0
	BGE open
	MOVD $1, R13
	LSL R9, R13, R13
	ORR R13, R10, R10
open:
	ADD $1, R9
	CMP $3, R9
	BLT file
	MOVD R10, ·closedAtStart(SB)
	ADD $64, RSP
	B _rt0_arm64_linux(SB)
