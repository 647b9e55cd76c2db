/* SPDX-License-Identifier: Apache-2.0 */
/* 64-bit hashing by multiply and fold: the 128-bit product of two words, its halves XORed, which is
 * one multiplication a 16 bytes. Not for untrusted keys without a secret seed: it goes into both
 * factors, so that nobody who does not know it can make one of them 0. */
#ifndef PYPROF_HASH_H
#define PYPROF_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Odd, half of the bits set: the fractional parts of sqrt(2), sqrt(3) and sqrt(5), made odd. */
#define PYPROF_HASH_0 0x6a09e667f3bcc909ull
#define PYPROF_HASH_1 0xbb67ae8584caa73bull
#define PYPROF_HASH_2 0x3c6ef372fe94f82bull

static inline uint64_t pyprof_hash_fold(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)a * b;

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t pyprof_hash_key(uint64_t seed)
{
	return (seed << 32 | seed >> 32) ^ PYPROF_HASH_1;
}

static inline uint64_t pyprof_hash_two(uint64_t a, uint64_t b, uint64_t seed)
{
	return pyprof_hash_fold(
	    pyprof_hash_fold(a ^ seed ^ PYPROF_HASH_0, b ^ pyprof_hash_key(seed)), PYPROF_HASH_2);
}

/* Hash of size bytes, read as little-endian words, the last one padded with zeros; the size counts,
 * so that a padded and an unpadded input differ. */
static inline uint64_t pyprof_hash_bytes(const void *data, size_t size, uint64_t seed)
{
	const unsigned char *at = data;
	uint64_t hash = seed ^ PYPROF_HASH_0, key = pyprof_hash_key(seed), pair[2];
	size_t left = size;

	for (; left >= sizeof(pair); at += sizeof(pair), left -= sizeof(pair)) {
		memcpy(pair, at, sizeof(pair));
		hash = pyprof_hash_fold(pair[0] ^ hash, pair[1] ^ key);
	}
	if (left) {
		memset(pair, 0, sizeof(pair));
		memcpy(pair, at, left);
		hash = pyprof_hash_fold(pair[0] ^ hash, pair[1] ^ key);
	}
	return pyprof_hash_fold(hash ^ (uint64_t)size, PYPROF_HASH_2);
}

#endif
