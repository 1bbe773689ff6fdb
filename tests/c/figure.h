/* figure.h - what a test of a fault has measured, for the table in docs/faults.md: a line in
 * the file $RLENGINE_FIGURES names, and nowhere without one. */
#ifndef TESTS_FIGURE_H
#define TESTS_FIGURE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((format(printf, 2, 3))) static inline void figure(const char *row, const char *fmt,
                                                                 ...)
{
    const char *path = getenv("RLENGINE_FIGURES");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    va_list ap;
    va_start(ap, fmt);
    fprintf(f, "%s\t", row);
    vfprintf(f, fmt, ap);
    fputc('\n', f);
    va_end(ap);
    fclose(f);
}

#endif
