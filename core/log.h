/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines to a file or standard error: "vortex-rdma[pid] level: text". A line is one write(2); errno is
 * preserved; async-signal-safe apart from vsnprintf. Standard error is used only while descriptor 2 is still the
 * file it was at vr_log_init and no socket (a program may have closed it and reused the number).
 */
#ifndef VR_LOG_H
#define VR_LOG_H

enum vr_log_level { VR_LOG_OFF, VR_LOG_ERROR, VR_LOG_WARN, VR_LOG_INFO, VR_LOG_DEBUG };

/* vr_log_init - set level and destination ("" = standard error). Opens nothing: a file is opened at the first line. */
void vr_log_init(int level, const char *file);
/* vr_log_level - the level in force, to skip costly preparation of debug lines. */
int vr_log_level(void);
/* vr_log - write a line if level is in force. */
void vr_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* vr_log_fd - descriptor of the open log file or -1 (so that the fd table can protect it). */
int vr_log_fd(void);
/* vr_log_child - in a forked child: keep the destination, nothing else to reset. */
void vr_log_child(void);

#define vr_err(...) vr_log(VR_LOG_ERROR, __VA_ARGS__)
#define vr_warn(...) vr_log(VR_LOG_WARN, __VA_ARGS__)
#define vr_info(...) vr_log(VR_LOG_INFO, __VA_ARGS__)
#define vr_debug(...) do { if (vr_log_level() >= VR_LOG_DEBUG) vr_log(VR_LOG_DEBUG, __VA_ARGS__); } while (0)

#endif
