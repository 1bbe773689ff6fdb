/* words.c - see words.h. */
#include "base/words.h"

#include <string.h>

int rle_word_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    int row[MAX + 1];
    int n = (int)strlen(b);
    if (n > MAX || strlen(a) > MAX) return MAX;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int up = row[j];
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (up + 1 < best) best = up + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = up;
            row[j] = best;
        }
    }
    return row[n];
}
