// Package sandbox keeps the jobs of one server apart from each other and from the server.
//
// A job's first process is an init of our own, process 1 of a PID namespace. It makes the place that the job finds
// (mounts, devices, limits), starts the job's program in it as a user of that job alone, waits for it, and writes its exit
// status. The job's program holds no capability and can gain none; it sees no process, no file and no IPC object of
// another job; it may use so much memory, CPU and so many processes as it was given, and no more.
//
// Invariants:
//   - When init is gone the kernel has ended every process of the job: a PID namespace dies with its process 1.
//   - Gone answers "none is left" only once its control groups could be removed, which the kernel refuses while a process
//     is in one.
//   - Files that a job can write to lie in its own folder. All else that it sees is mounted read-only.
//
// Where it may not be had (not root, no control groups), Open says why, and nothing is half done.
//
// Not here: which user id and devices a job is given, its output, its end's meaning (worker/agent).
package sandbox
