//! A fault-injecting file layer for crash tests: a library for `LD_PRELOAD` that stands in front of the calls which change a file,
//! counts them, and at the chosen one kills its own process or fails the call.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `FAULTFS_MATCH` | files whose path contains this text are counted; without it nothing is |
//! | `FAULTFS_CALL` | only calls of this name are counted, such as `fsync`; failures from the chosen call on meet all calls |
//! | `FAULTFS_AT` | the number of the call, from 1; without it calls are only counted |
//! | `FAULTFS_DO` | `kill-before`, `kill-after`, `kill-half`, `enospc`, `eio`, `enospc-once`, `eio-once` |
//! | `FAULTFS_UNTIL` | a file: once it exists, calls no longer fail |
//! | `FAULTFS_COUNT` | a file into which every counted call writes its number and name, one line each |
//!
//! `kill-half` writes the first half of the bytes before it kills; for a call without bytes it is `kill-before`. A failing call writes
//! nothing, except that a write of more than one byte which meets `enospc` at the chosen number first writes its first half, as a disk
//! that fills up does; the rest then fails.
//!
//! **Architecture invariants.** No allocation, no lock, no symbol of libc that is replaced here: every function runs inside calls of
//! arbitrary code. The path of a descriptor is asked from `/proc/self/fd` at every call, so that nothing has to follow `open`, `dup`
//! and `close`.
#![allow(unsafe_code, reason = "replacing functions of libc is the purpose of the crate")]

mod call;
mod plan;

use core::ffi::{CStr, c_char, c_int, c_void};

use libc::{off_t, size_t, ssize_t};

use call::Call;

/// Replaces `write(2)`.
///
/// # Safety
/// As `write(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t {
    call::bytes(&Call::of_fd(c"write", fd), count, |count| {
        // SAFETY: the caller's buffer has at least `count` bytes.
        unsafe { libc::syscall(libc::SYS_write, fd, bytes, count) as ssize_t }
    })
}

/// Replaces `pwrite(2)`.
///
/// # Safety
/// As `pwrite(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    call::bytes(&Call::of_fd(c"pwrite", fd), count, |count| {
        // SAFETY: the caller's buffer has at least `count` bytes.
        unsafe { libc::syscall(libc::SYS_pwrite64, fd, bytes, count, offset) as ssize_t }
    })
}

/// Replaces `pwrite64(2)`.
///
/// # Safety
/// As `pwrite(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t {
    // SAFETY: the same contract.
    unsafe { pwrite(fd, bytes, count, offset) }
}

/// Replaces `fsync(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: no memory is passed.
    call::whole(&Call::of_fd(c"fsync", fd), || unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int })
}

/// Replaces `fdatasync(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: no memory is passed.
    call::whole(&Call::of_fd(c"fdatasync", fd), || unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int })
}

/// Replaces `ftruncate(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn ftruncate(fd: c_int, length: off_t) -> c_int {
    // SAFETY: no memory is passed.
    call::whole(&Call::of_fd(c"ftruncate", fd), || unsafe { libc::syscall(libc::SYS_ftruncate, fd, length) as c_int })
}

/// Replaces `ftruncate64(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn ftruncate64(fd: c_int, length: off_t) -> c_int {
    ftruncate(fd, length)
}

/// Replaces `unlink(2)`.
///
/// # Safety
/// As `unlink(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unlink(path: *const c_char) -> c_int {
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(path) };
    // SAFETY: the same pointer.
    call::whole(&Call::of_path(c"unlink", name), || unsafe { libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, path, 0) as c_int })
}

/// Replaces `rename(2)`.
///
/// # Safety
/// As `rename(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: the caller passes C strings.
    let name = unsafe { CStr::from_ptr(to) };
    // SAFETY: the same pointers.
    call::whole(&Call::of_path(c"rename", name), || unsafe {
        libc::syscall(libc::SYS_renameat2, libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0) as c_int
    })
}
