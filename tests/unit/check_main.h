/* SPDX-License-Identifier: Apache-2.0 */
/* main() of a Check program: CHECK_MAIN(name, tests...). */
#ifndef CHECK_MAIN_H
#define CHECK_MAIN_H

#include <check.h>

#define CHECK_MAIN(name, ...)                                              \
	int main(void)                                                     \
	{                                                                  \
		const TTest *tests[] = {__VA_ARGS__};                      \
		Suite *s = suite_create(name);                             \
		TCase *t = tcase_create("all");                            \
		SRunner *r = srunner_create(s);                            \
		int failed;                                                \
		for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) \
			tcase_add_test(t, tests[i]);                       \
		suite_add_tcase(s, t);                                     \
		srunner_run_all(r, CK_NORMAL);                             \
		failed = srunner_ntests_failed(r);                         \
		srunner_free(r);                                           \
		return failed != 0;                                        \
	}

#endif
