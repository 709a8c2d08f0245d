//! One replaced call: counted, then carried out as the plan says.

use core::ffi::{CStr, c_int};

use libc::{size_t, ssize_t};

use crate::plan::{Action, PATH_BYTES_MAX, Plan, path_of};

/// A call that changes a file.
pub(crate) struct Call {
    action: Action,
}

impl Call {
    pub(crate) fn of_fd(name: &'static CStr, fd: c_int) -> Self {
        let Some(plan) = Plan::get() else { return Self { action: Action::Pass } };
        let mut path = [0; PATH_BYTES_MAX];
        let action = path_of(fd, &mut path).map_or(Action::Pass, |path| plan.next(name, path));
        Self { action }
    }

    pub(crate) fn of_path(name: &'static CStr, path: &CStr) -> Self {
        let action = Plan::get().map_or(Action::Pass, |plan| plan.next(name, path.to_bytes()));
        Self { action }
    }
}

/// Carries out a call without bytes.
pub(crate) fn whole(call: &Call, run: impl FnOnce() -> c_int) -> c_int {
    match call.action {
        Action::Pass => run(),
        Action::KillBefore | Action::KillHalf => die(),
        Action::KillAfter => {
            run();
            die()
        }
        Action::Fail { errno, .. } => fail(errno) as c_int,
    }
}

/// Carries out a call that writes `count` bytes, or fewer.
pub(crate) fn bytes(call: &Call, count: size_t, run: impl FnOnce(size_t) -> ssize_t) -> ssize_t {
    match call.action {
        Action::Pass => run(count),
        Action::KillBefore => die(),
        Action::KillHalf => {
            run(count / 2);
            die()
        }
        Action::KillAfter => {
            run(count);
            die()
        }
        Action::Fail { first: true, errno: libc::ENOSPC } if count > 1 => run(count / 2),
        Action::Fail { errno, .. } => fail(errno),
    }
}

fn fail(errno: c_int) -> ssize_t {
    // SAFETY: the location of this thread's errno is always valid.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn die() -> ! {
    // SAFETY: no memory is passed.
    unsafe {
        libc::syscall(libc::SYS_kill, libc::syscall(libc::SYS_getpid), libc::SIGKILL);
        loop {
            libc::syscall(libc::SYS_sched_yield);
        }
    }
}
