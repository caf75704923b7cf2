/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* What the programs that print what they see have in common; a program includes it once. */

#ifndef RDMA_VERBS_OBSERVE_H
#define RDMA_VERBS_OBSERVE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define die(...) do { fprintf(stderr, "observe: " __VA_ARGS__); fputs("\n", stderr); exit(1); } while (0)
#define need(truth) do { if (!(truth)) die("%s:%d: not so: %s: %m", __FILE__, __LINE__, #truth); } while (0)

/* What the case that is played has seen so far: room of this size. */
#define OBSERVED ((size_t)16384)
static char *observed;

static void say(const char *format, ...)
{
	size_t length = strlen(observed);
	va_list arguments;

	length += snprintf(observed + length, OBSERVED - length, "%s", length ? "; " : "");
	need(length < OBSERVED);
	va_start(arguments, format);
	vsnprintf(observed + length, OBSERVED - length, format, arguments);
	va_end(arguments);
}

static long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Names of what is compared: numbers of errno are the same everywhere, but do not tell much. */
static const char *error(int value)
{
	static char unknown[32];

	if (!value)
		return "ok";
	if (value > 0 && strerrorname_np(value))
		return strerrorname_np(value);
	snprintf(unknown, sizeof(unknown), "%d", value);
	return unknown;
}

static const char *status(int status)
{
	static const char *const names[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
		"BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
		"RNR_RETRY_EXC_ERR",
	};

	return status < (int)(sizeof(names) / sizeof(names[0])) ? names[status] : "?";
}

static const char *state(int state)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

	return state < 7 ? names[state] : "?";
}

#endif
