//! What the environment asks for.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The longest path that is looked at; a longer one is cut.
pub(crate) const PATH_BYTES_MAX: usize = 512;

/// How many counted calls there were.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The descriptor of `FAULTFS_COUNT`; -1 before it is opened.
static LOG: AtomicI32 = AtomicI32::new(-1);

/// What becomes of one call.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Pass,
    KillBefore,
    KillAfter,
    KillHalf,
    Fail {
        errno: c_int,
        /// It is the chosen call and not one after it.
        first: bool,
    },
}

/// Which files, which call, and what. Read from the environment at every call: nothing has to be set up.
pub(crate) struct Plan {
    pattern: &'static [u8],
    /// The only call that is counted.
    call: Option<&'static CStr>,
    at: u64,
    what: &'static [u8],
    until: Option<&'static CStr>,
}

impl Plan {
    /// `None` where nothing is asked for.
    pub(crate) fn get() -> Option<Self> {
        let pattern = variable(c"FAULTFS_MATCH")?.to_bytes();
        let at = variable(c"FAULTFS_AT").map_or(0, |text| number(text.to_bytes()));
        let what = variable(c"FAULTFS_DO").map_or(&b""[..], CStr::to_bytes);
        Some(Self { pattern, call: variable(c"FAULTFS_CALL"), at, what, until: variable(c"FAULTFS_UNTIL") })
    }

    /// Counts a call on a file and says what becomes of it.
    pub(crate) fn next(&self, name: &CStr, path: &[u8]) -> Action {
        if !path.windows(self.pattern.len().max(1)).any(|part| part == self.pattern) {
            return Action::Pass;
        }
        let counted = self.call.is_none_or(|call| call == name);
        let count = if counted { COUNT.fetch_add(1, Ordering::SeqCst) + 1 } else { COUNT.load(Ordering::SeqCst) };
        if counted {
            log(count, name, path);
        }
        if self.at == 0 || count < self.at {
            return Action::Pass;
        }
        let first = counted && count == self.at;
        match self.what {
            b"kill-before" if first => Action::KillBefore,
            b"kill-after" if first => Action::KillAfter,
            b"kill-half" if first => Action::KillHalf,
            b"enospc-once" if first => Action::Fail { errno: libc::ENOSPC, first },
            b"eio-once" if first => Action::Fail { errno: libc::EIO, first },
            // Freeing space and repairing a disk is what happens until the file exists. Syncing is no matter of space.
            b"enospc" if !self.over() && name != c"fsync" && name != c"fdatasync" && name != c"unlink" => {
                Action::Fail { errno: libc::ENOSPC, first }
            }
            b"eio" if !self.over() => Action::Fail { errno: libc::EIO, first },
            _ => Action::Pass,
        }
    }

    fn over(&self) -> bool {
        // SAFETY: the path is a C string.
        self.until.is_some_and(|path| unsafe { libc::access(path.as_ptr(), libc::F_OK) } == 0)
    }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is a C string. The processes under test never change their environment, so the value stays where it is.
    let value: *const c_char = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv gives null or a C string.
    if value.is_null() { None } else { Some(unsafe { CStr::from_ptr(value) }) }
}

fn number(digits: &[u8]) -> u64 {
    digits.iter().filter(|byte| byte.is_ascii_digit()).fold(0, |number, byte| number * 10 + u64::from(byte - b'0'))
}

/// The path that a descriptor was opened with.
pub(crate) fn path_of(fd: c_int, path: &mut [u8; PATH_BYTES_MAX]) -> Option<&[u8]> {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut rest = u32::try_from(fd).ok()?;
    let mut digits = [0; 10];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let digits = &digits[first..];
    link[14..14 + digits.len()].copy_from_slice(digits);
    // SAFETY: the link ends with a NUL, and the buffer has the length that is given.
    let read = unsafe { libc::readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), PATH_BYTES_MAX) };
    path.get(..usize::try_from(read).ok()?)
}

fn log(count: u64, name: &CStr, path: &[u8]) {
    let Some(file) = variable(c"FAULTFS_COUNT") else { return };
    let mut fd = LOG.load(Ordering::SeqCst);
    if fd < 0 {
        // SAFETY: the path is a C string.
        fd = unsafe { libc::open(file.as_ptr(), libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC, 0o600) };
        LOG.store(fd, Ordering::SeqCst);
    }
    let mut line = [0; PATH_BYTES_MAX + 64];
    let mut length = 0;
    let mut push = |bytes: &[u8]| {
        let end = (length + bytes.len()).min(line.len());
        line[length..end].copy_from_slice(&bytes[..end - length]);
        length = end;
    };
    let mut digits = [b'0'; 20];
    let mut rest = count;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    push(&digits[12..]);
    push(b" ");
    push(name.to_bytes());
    push(b" ");
    push(path);
    push(b"\n");
    // SAFETY: the line has `length` bytes. The system call, since `write` is replaced.
    unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), length) };
}
