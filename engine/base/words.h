/* words.h - how near two words are: for "did you mean". */
#ifndef RLE_BASE_WORDS_H
#define RLE_BASE_WORDS_H

/* How many letters have to be changed, added or left out to make one of the other. Words of
 * more than 64 letters are far from everything. */
int rle_word_distance(const char *a, const char *b);

#endif
