// SPDX-License-Identifier: Apache-2.0
// Native load, for ever: recursion, qsort with a callback, std::map, zlib; 20 to 30 frames deep.
// Built without frame pointers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <zlib.h>

static volatile unsigned long sink;

static int by_text(const void *left, const void *right)
{
	return strcmp(*(const char *const *)left, *(const char *const *)right);
}

__attribute__((noinline)) static void work(unsigned seed)
{
	static Bytef packed[65536];
	std::map<std::string, int> places;
	std::vector<std::string> numbers;
	std::vector<const char *> texts;
	std::string all;
	uLongf size = sizeof(packed);
	unsigned long sum = 0;

	srand(seed);
	for (int i = 0; i < 2000; i++) {
		numbers.push_back(std::to_string(rand()));
		places[numbers.back()] = i;
	}
	for (const std::string &number : numbers)
		texts.push_back(number.c_str());
	qsort(texts.data(), texts.size(), sizeof(texts[0]), by_text);
	std::sort(numbers.begin(), numbers.end());
	for (const std::string &number : numbers) {
		sum = crc32(sum, (const Bytef *)number.data(), number.size());
		all += number;
	}
	compress(packed, &size, (const Bytef *)all.data(), all.size());
	sink += sum + size;
}

__attribute__((noinline)) static void descend(int depth, unsigned seed)
{
	volatile char pad[40]; // keeps the call from being a jump

	pad[0] = (char)depth;
	if (depth == 0)
		work(seed);
	else
		descend(depth - 1, seed + pad[0]);
	sink += pad[0];
}

int main()
{
	for (unsigned seed = 0;; seed++)
		descend(20, seed);
}
