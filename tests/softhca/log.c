/* The log on stderr, with SOFTHCA_LOG=1. */
#include "hca.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void hca_log_line(const char *format, ...)
{
	const int saved = errno;
	char b[512];
	va_list ap;
	int n;

	n = snprintf(b, sizeof b, "[softhca %d] ", (int)getpid());
	va_start(ap, format);
	n += vsnprintf(b + n, sizeof b - n, format, ap);
	va_end(ap);
	if (n > (int)sizeof b - 2)
		n = sizeof b - 2;
	b[n++] = '\n';
	if (write(STDERR_FILENO, b, n) != n) {
		/* nowhere to say it */
	}
	errno = saved;
}
