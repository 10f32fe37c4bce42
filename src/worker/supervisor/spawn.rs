//! Starting one process, and learning how it ended. Has `unsafe`, as `domain` has: what has to
//! happen between `clone` and `execve` (session, parent-death signal, limits, streams) has no safe
//! interface that costs as little as `vfork`.

use super::{
    super::protocol::{Launch, STDERR_FILE, STDOUT_FILE},
    cgroup::TaskGroup,
    domain, secrets,
};
use rustix::{fd::OwnedFd, process::Pid};
use std::{
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    ptr,
    time::Instant,
};

/// Programs that nobody sends along with a job; versions follow their names.
const INTERPRETERS: [&str; 6] = ["python", "perl", "ruby", "Rscript", "julia", "java"];

const CHILD_STACK_BYTES: usize = 64 << 10;
/// Before the node, tasks are what a machine out of memory gives up.
const OOM_SCORE: &[u8] = b"500";
/// A session has a share of the processor of its own where the kernel groups processes by sessions
/// (sched(7)), and tasks are sessions: there, niceness counts only if the session has it too.
const SESSION_NICE: &CStr = c"/proc/self/autogroup";
const GREATEST_NICE: i32 = 19;

const NOT_HIDDEN: &str = "hint: `nodectl doctor` on that node says more; `[isolation] hides_node = false` in the job does without";

/// How a child ended.
#[derive(Clone, Debug)]
pub struct ChildExit {
    pub pid: Pid,
    pub at: Instant,
    /// The exit status, or the signal that ended it.
    pub status: Result<i32, i32>,
    pub cpu_us: u64,
    pub max_rss_bytes: u64,
}

/// Everything the child needs, made before it exists: it shares this process's memory and must not
/// allocate.
struct SpawnPlan {
    program: CString,
    argv: Vec<*const libc::c_char>,
    shell_argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    dir: CString,
    stdout: CString,
    stderr: CString,
    file_limit: libc::rlimit,
    /// The file by which a process enters the task's control group.
    group: Option<CString>,
    nice: i32,
    /// `nice`, as text.
    session_nice: Vec<u8>,
    /// Of its own network: the flags that make it, and which user it is there, if not root.
    namespaces: libc::c_int,
    users: Option<[Vec<u8>; 2]>,
    /// Whether it may gain no rights.
    no_new_privs: bool,
    core_dumps: bool,
    /// Of what it can reach.
    domain: Option<OwnedFd>,
    parent: libc::pid_t,
    /// What failed in the child, and the `errno`.
    failed: Option<(SpawnStep, libc::c_int)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpawnStep {
    Session,
    Group,
    Directory,
    Streams,
    Limits,
    Network,
    Confinement,
    Execute,
}

/// Starts a process as its task says. The error is a sentence for the user.
pub fn spawn(launch: &Launch, group: Option<&TaskGroup>) -> Result<Pid, String> {
    let program = find_program(launch)?;
    let program =
        CString::new(program.into_os_string().into_vec()).map_err(|error| error.to_string())?;
    let args = strings(launch.command.iter().map(|arg| arg.clone().into_bytes()))?;
    let secrets = secrets::place(&launch.secrets)
        .map_err(|error| format!("no memory for its secrets: {error}"))?;
    let env = strings(launch.env.iter().cloned().chain(secrets.variables()))?;
    let dir = CString::new(launch.dir.clone()).map_err(|error| error.to_string())?;
    let shell = c"/bin/sh";
    let mut shell_argv = vec![shell.as_ptr(), program.as_ptr()];
    shell_argv.extend(pointers(&args).into_iter().skip(1));
    let (namespaces, users) = match launch.confinement.offline {
        true => own_network(),
        false => (0, None),
    };
    let domain = domain::make(&launch.confinement);
    let domain = domain.map_err(|why| {
        format!("this node cannot be hidden from it by the kernel: {why}\n{NOT_HIDDEN}")
    })?;
    let nice = (own_nice() + i32::from(launch.nice)).min(GREATEST_NICE);
    let mut plan = SpawnPlan {
        argv: pointers(&args),
        shell_argv,
        envp: pointers(&env),
        dir,
        stdout: CString::new(STDOUT_FILE).expect("no NUL"),
        stderr: CString::new(STDERR_FILE).expect("no NUL"),
        file_limit: libc::rlimit {
            rlim_cur: launch.file_limit_bytes,
            rlim_max: launch.file_limit_bytes,
        },
        group: group.map(TaskGroup::procs_file),
        nice,
        session_nice: nice.to_string().into_bytes(),
        namespaces,
        users,
        no_new_privs: !launch.confinement.setuid,
        core_dumps: launch.confinement.core_dumps,
        domain,
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        failed: None,
        program,
    };
    let pid = clone_and_run(&mut plan);
    // Its own are other descriptors.
    drop(secrets);
    let pid = pid.map_err(|error| format!("no new process: {error}"))?;
    let Some((step, errno)) = plan.failed else {
        return Ok(pid);
    };
    // SAFETY: waits for the child that just ended by itself; no pointers are passed but a null one.
    unsafe { libc::waitpid(pid.as_raw_nonzero().get(), ptr::null_mut(), 0) };
    Err(describe(
        step,
        &io::Error::from_raw_os_error(errno),
        launch,
        &plan.program.to_string_lossy(),
    ))
}

fn strings(items: impl Iterator<Item = Vec<u8>>) -> Result<Vec<CString>, String> {
    items
        .map(|item| CString::new(item).map_err(|error| format!("a NUL byte: {error}")))
        .collect()
}

fn describe(step: SpawnStep, error: &io::Error, launch: &Launch, program: &str) -> String {
    let dir = String::from_utf8_lossy(&launch.dir);
    match step {
        SpawnStep::Session => format!("no new session: {error}"),
        SpawnStep::Group => format!("could not enter the control group for its memory: {error}"),
        SpawnStep::Directory => format!("could not enter {dir}: {error}"),
        SpawnStep::Streams => format!("could not open the streams in {dir}: {error}"),
        SpawnStep::Limits => format!(
            "could not set the limit of {} bytes a file: {error}",
            launch.file_limit_bytes
        ),
        SpawnStep::Network => format!(
            "no network of its own (`[isolation] network = false`): {error}\nhint: the node may make none where users' namespaces are switched off"
        ),
        SpawnStep::Confinement => {
            format!("could not give up the way to what is this node's alone: {error}\n{NOT_HIDDEN}")
        }
        SpawnStep::Execute => format!("could not execute {program}: {error}"),
    }
}

/// The program's path: as given if it has a slash, else the first executable of that name in the
/// task's own PATH.
fn find_program(launch: &Launch) -> Result<PathBuf, String> {
    let name = launch.command.first().ok_or("an empty command")?;
    let dir = Path::new(OsStr::from_bytes(&launch.dir));
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path = launch
        .env
        .iter()
        .rev()
        .find_map(|variable| variable.strip_prefix(b"PATH="))
        .unwrap_or(b"/usr/bin:/bin");
    let candidates =
        std::env::split_paths(OsStr::from_bytes(path)).map(|entry| dir.join(entry).join(name));
    let executable = |path: &PathBuf| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    candidates.into_iter().find(executable).ok_or_else(|| {
        let path = String::from_utf8_lossy(path);
        let is_interpreter = INTERPRETERS.iter().any(|one| name.starts_with(one));
        let travels = match is_interpreter {
            true => String::new(),
            false => format!("; a program of your own can travel with the job, called `./{name}`"),
        };
        format!("no program `{name}` in PATH ({path})\nhint: install it on this node{travels}")
    })
}

/// Null-terminated, as `execve` wants them. Valid while `strings` is.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}

/// `vfork` with a stack of the child's own, as `posix_spawn` does it: returns when the child has
/// executed or failed.
fn clone_and_run(plan: &mut SpawnPlan) -> io::Result<Pid> {
    let mut stack = vec![0u128; CHILD_STACK_BYTES / 16];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | plan.namespaces;
    // SAFETY: the stack outlives the child's use of it, since CLONE_VFORK suspends this thread
    // until the child executes or exits; its end is aligned to 16. `plan` likewise outlives it, and
    // this thread, the only one, touches neither meanwhile. `child` only makes system calls.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len());
        libc::clone(child, top.cast(), flags, ptr::from_mut(plan).cast())
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("clone gave pid 0"))
}

/// Runs in the child, on its own stack, in the parent's memory. Async-signal-safe calls only.
extern "C" fn child(plan: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone_and_run` passes a `SpawnPlan` that lives until this process executes or exits,
    // and nobody else uses it.
    let plan = unsafe { &mut *plan.cast::<SpawnPlan>() };
    // SAFETY: every pointer in the plan is a valid C string or a null-terminated array of them.
    let step = unsafe { become_task(plan) };
    // SAFETY: reads and ends this process only. `errno` is that of the call that failed.
    unsafe {
        plan.failed = Some((step, *libc::__errno_location()));
        libc::_exit(127)
    }
}

/// Returns only if something failed.
unsafe fn become_task(plan: &SpawnPlan) -> SpawnStep {
    // SAFETY: see `child`.
    unsafe {
        if libc::setsid() < 0
            || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0
            || libc::getppid() != plan.parent
        {
            return SpawnStep::Session;
        }
        if let Some(group) = &plan.group
            && !write_to(group.as_ptr(), b"0")
        {
            return SpawnStep::Group;
        }
        if plan.namespaces != 0 && !enter_network(plan.users.as_ref()) {
            return SpawnStep::Network;
        }
        if libc::chdir(plan.dir.as_ptr()) < 0 {
            return SpawnStep::Directory;
        }
        let append = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND;
        if !(open_as(c"/dev/null".as_ptr(), libc::O_RDONLY, 0) || nothing_as(0))
            || !open_as(plan.stdout.as_ptr(), append, 1)
            || !open_as(plan.stderr.as_ptr(), append, 2)
        {
            return SpawnStep::Streams;
        }
        if !limit_files(&plan.file_limit) || !keep_core_dumps(plan.core_dumps) {
            return SpawnStep::Limits;
        }
        // Where these cannot be set, tasks are as much in the node's way as other processes. The
        // second may come to nothing: the kernel takes few such wishes at a time from whoever is
        // not root.
        let _ = rustix::process::setpriority_process(None, plan.nice);
        write_to(SESSION_NICE.as_ptr(), &plan.session_nice);
        // Where it cannot be set, tasks are as likely to go as the node.
        write_to(c"/proc/self/oom_score_adj".as_ptr(), OOM_SCORE);
        default_signals();
        if plan.no_new_privs && libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return SpawnStep::Confinement;
        }
        // Last: what comes before may need what it takes away.
        if let Some(domain) = &plan.domain
            && !domain::enter(domain.as_raw_fd())
        {
            return SpawnStep::Confinement;
        }
        libc::execve(
            plan.program.as_ptr(),
            plan.argv.as_ptr(),
            plan.envp.as_ptr(),
        );
        if *libc::__errno_location() == libc::ENOEXEC {
            // A script without `#!`: the shell's, as execvp(3) has it.
            libc::execve(
                c"/bin/sh".as_ptr(),
                plan.shell_argv.as_ptr(),
                plan.envp.as_ptr(),
            );
        }
        SpawnStep::Execute
    }
}

/// No file grows beyond this. Where the node runs under a lower limit, which nobody may raise, that
/// one holds.
unsafe fn limit_files(limit: &libc::rlimit) -> bool {
    // SAFETY: the pointers are to the caller's limit and to a local.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_FSIZE, limit) == 0 {
            return true;
        }
        let mut own = *limit;
        if libc::getrlimit(libc::RLIMIT_FSIZE, &mut own) < 0 {
            return false;
        }
        own.rlim_cur = own.rlim_max;
        libc::setrlimit(libc::RLIMIT_FSIZE, &own) == 0
    }
}

/// As large as the node may leave them, or none.
unsafe fn keep_core_dumps(wanted: bool) -> bool {
    // SAFETY: the pointers are to a local.
    unsafe {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        if wanted {
            if libc::getrlimit(libc::RLIMIT_CORE, &mut limit) < 0 {
                return false;
            }
            limit.rlim_cur = limit.rlim_max;
        }
        libc::setrlimit(libc::RLIMIT_CORE, &limit) == 0
    }
}

/// Whoever is not root may make a network in a namespace of users, in which he is himself and
/// nobody else is anybody.
fn own_network() -> (libc::c_int, Option<[Vec<u8>; 2]>) {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return (libc::CLONE_NEWNET, None);
    }
    let same = |id: u32| format!("{id} {id} 1").into_bytes();
    (
        libc::CLONE_NEWNET | libc::CLONE_NEWUSER,
        Some([same(user.as_raw()), same(group.as_raw())]),
    )
}

/// In a new network: says who is who, and switches loopback on, which many programs use to speak to
/// themselves.
unsafe fn enter_network(users: Option<&[Vec<u8>; 2]>) -> bool {
    // SAFETY: the paths are valid C strings, `request` is a local of the kind that the call takes,
    // the socket is closed.
    unsafe {
        if let Some([user, group]) = users
            && !(write_to(c"/proc/self/setgroups".as_ptr(), b"deny")
                && write_to(c"/proc/self/uid_map".as_ptr(), user)
                && write_to(c"/proc/self/gid_map".as_ptr(), group))
        {
            return false;
        }
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return false;
        }
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let is_up = libc::ioctl(socket, libc::SIOCSIFFLAGS, &request) == 0;
        libc::close(socket);
        is_up
    }
}

/// Writes all of `bytes` at once to a file that exists.
unsafe fn write_to(path: *const libc::c_char, bytes: &[u8]) -> bool {
    // SAFETY: `path` is a valid C string.
    unsafe {
        let opened = libc::open(path, libc::O_WRONLY | libc::O_CLOEXEC);
        if opened < 0 {
            return false;
        }
        let written = libc::write(opened, bytes.as_ptr().cast(), bytes.len());
        libc::close(opened);
        written == bytes.len() as isize
    }
}

unsafe fn open_as(path: *const libc::c_char, flags: libc::c_int, fd: libc::c_int) -> bool {
    // SAFETY: `path` is a valid C string.
    unsafe { put_as(libc::open(path, flags | libc::O_CLOEXEC, 0o600), fd) }
}

/// A stream that says nothing, where there is no `/dev/null`.
unsafe fn nothing_as(fd: libc::c_int) -> bool {
    // SAFETY: the name is a valid C string.
    unsafe {
        put_as(
            libc::memfd_create(c"nothing".as_ptr(), libc::MFD_CLOEXEC),
            fd,
        )
    }
}

unsafe fn put_as(opened: libc::c_int, fd: libc::c_int) -> bool {
    // SAFETY: system calls that take numbers alone.
    unsafe {
        opened >= 0 && libc::dup2(opened, fd) == fd && (opened == fd || libc::close(opened) == 0)
    }
}

/// What this process ignores or blocks, the task does not. SIGPIPE is ignored by Rust's start-up
/// code.
unsafe fn default_signals() {
    // SAFETY: changes dispositions and mask of the calling process; without CLONE_SIGHAND the
    // parent's are its own.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// The next child that has ended, if one has.
pub fn wait_any() -> Option<ChildExit> {
    let mut status = 0;
    // SAFETY: `rusage` is plain numbers, for which zero is a value; both pointers are to locals
    // that outlive the call.
    let (pid, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (
            libc::wait4(-1, &mut status, libc::WNOHANG, &mut usage),
            usage,
        )
    };
    let pid = Pid::from_raw(pid.max(0))?;
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    let status = if libc::WIFSIGNALED(status) {
        Err(libc::WTERMSIG(status))
    } else {
        Ok(libc::WEXITSTATUS(status))
    };
    Some(ChildExit {
        pid,
        at: Instant::now(),
        status,
        cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime),
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
    })
}

/// The supervisor's own niceness, which is its node's.
fn own_nice() -> i32 {
    rustix::process::getpriority_process(None).unwrap_or(0)
}

/// The unit of `Process::rss_pages`.
pub fn page_bytes() -> u64 {
    // SAFETY: a question without pointers. Linux always answers it.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// CPU time that a process has used, in microseconds, if it is there. Its clock's number:
/// clock_getcpuclockid(3).
pub fn cpu_us(pid: u32) -> Option<u64> {
    let clock = (!i32::try_from(pid).ok()? << 3) | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a local. A clock that is no more is an error.
    let read = unsafe { libc::clock_gettime(clock, &mut time) };
    (read == 0).then(|| time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000)
}

/// A descriptor that is readable when a child has ended. From here on the signals that end programs
/// politely wait: this process ends when its socket closes.
pub fn child_signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the sets are locals; the descriptor that is returned is new and owned by nobody else.
    unsafe {
        let mut blocked = std::mem::zeroed();
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGCHLD);
        let children = blocked;
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&mut blocked, signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &blocked, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &children, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(OwnedFd::from_raw_fd(fd))
        }
    }
}

/// Empties the signal descriptor.
pub fn drain_signals(fd: &OwnedFd) -> io::Result<()> {
    let mut buffer = [0u8; 1024];
    loop {
        match rustix::io::read(fd, &mut buffer) {
            Ok(count) if count == buffer.len() => {}
            Ok(_) | Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Closes whatever this process inherited besides its three streams.
pub fn close_others() -> io::Result<()> {
    let first = io::stderr().as_raw_fd() as libc::c_uint + 1;
    // SAFETY: called before anything else is opened, so that nothing in this process owns what it
    // closes.
    if unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) } < 0 {
        let error = io::Error::last_os_error();
        // Kernels before 5.9 lack the call; all that this program opens closes itself on execution
        // anyway.
        return if error.raw_os_error() == Some(libc::ENOSYS) {
            Ok(())
        } else {
            Err(error)
        };
    }
    Ok(())
}
