//! The one device, `soft0`: its list, its contexts, and what they answer about it, its port and the port's tables.

use super::acknowledged::{HandedOut, acknowledged};
use super::object::{self, own};
use super::outcome;
use super::{cq, post, qp};
use crate::addresses::{self, GID_TABLE_LENGTH};
use crate::engine::{self, AsyncEvent, AsyncEvents, limit};
use crate::uncancelled::Uncancelled;
use libc::{c_char, c_int, c_uint, c_void, size_t, ssize_t};
use nix::errno::Errno;
use rdma_sys::{
    _compat_ibv_port_attr, ibv_async_event, ibv_async_event_element_t, ibv_atomic_cap, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_device_attr_ex, ibv_device_cap_flags, ibv_event_type, ibv_gid, ibv_gid_entry, ibv_mtu,
    ibv_node_type, ibv_port_attr, ibv_port_cap_flags, ibv_port_state, ibv_qp, ibv_query_device_ex_input, ibv_srq,
    ibv_transport_type, verbs_context,
};
use std::ffi::CStr;
use std::fs;
use std::io::Read as _;
use std::mem::{self, offset_of};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// What is behind an `ibv_context`.
pub(super) struct Own {
    pub(super) events: Arc<AsyncEvents>,
}

/// The number of the only port.
const PORT: u32 = 1;
/// The default partition, which every port has.
const PKEY: u16 = 0xffff;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`, of a RoCE port.
const GRH_REQUIRED: u8 = 1;
/// As the port's `active_width` and `active_speed` have them: 4 lanes at 2.5 Gbit/s, a plausible network.
const WIDTH_4X: u8 = 2;
const SPEED_SDR: u8 = 1;
/// The same in units of 100 Mbit/s.
const SPEED: u64 = 100;
/// `phys_state` of a link that is up (IBTA volume 1, PortInfo).
const LINK_UP: u8 = 5;

/// A struct of the ABI that has only integers, pointers and functions that may be absent, of which programs may know
/// more or less fields than we do.
///
/// # Safety
/// * All bits zero are a `T`.
unsafe fn zeroed<T>() -> T {
    // SAFETY: the caller's promise.
    unsafe { mem::zeroed() }
}

/// The device, and what libibverbs has behind it: the operations of its driver. Those of adapters look there whether a device
/// is theirs (`mlx5dv_is_supported`, `efadv_query_device`, which UCX and libfabric ask), and find that it is nobody's.
#[repr(C)]
struct Shared {
    device: ibv_device,
    driver: *const c_void,
}

// SAFETY: never changes once it is made; programs must not write to it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// The device. It lives as long as the process, whatever lists are freed.
pub(crate) fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<Shared> = OnceLock::new();
    let Shared { device, .. } = DEVICE.get_or_init(|| {
        // SAFETY: names, numbers and functions that may be absent.
        let mut device: ibv_device = unsafe { zeroed() };
        device.node_type = ibv_node_type::IBV_NODE_CA;
        device.transport_type = ibv_transport_type::IBV_TRANSPORT_IB;
        copy(&mut device.name, "soft0");
        copy(&mut device.dev_name, "uverbs-soft0");
        // Where a kernel device would have its directories. There are none, and whoever looks finds none.
        copy(&mut device.dev_path, "/sys/class/infiniband_verbs/uverbs-soft0");
        copy(&mut device.ibdev_path, "/sys/class/infiniband/soft0");
        Shared { device, driver: ptr::null() }
    });
    ptr::from_ref(device).cast_mut()
}

/// Puts an ASCII text into a zeroed array that is longer.
fn copy(to: &mut [c_char], text: &str) {
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The list has our device and no other: those of the kernel would need the real library.
///
/// # Safety
/// * As for `ibv_get_device_list(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    if !num_devices.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *num_devices = 1 };
    }
    Box::into_raw(Box::new([device(), ptr::null_mut()])).cast()
}

/// # Safety
/// * As for `ibv_free_device_list(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if !list.is_null() {
        // SAFETY: made by `ibv_get_device_list`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
    }
}

/// # Safety
/// * As for `ibv_get_device_name(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device, by the caller's promise.
    unsafe { &raw const (*device).name }.cast()
}

/// In network byte order.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    guid().to_be()
}

/// The index is that of a kernel device, which this is not.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// The same for all processes of a host, and for a host at all times: of the hardware address of its first interface,
/// as adapters make theirs (EUI-64); else of its machine ID; else the one of hosts that have neither.
fn guid() -> u64 {
    static GUID: OnceLock<u64> = OnceLock::new();
    let _uncancelled = Uncancelled::new();
    *GUID.get_or_init(|| match addresses::hardware_address() {
        Some([a, b, c, d, e, f]) => u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]),
        None => machine_id().unwrap_or(0x0200_00ff_fe00_0001),
    })
}

/// The first half of the machine ID, see machine-id(5).
fn machine_id() -> Option<u64> {
    let text = fs::read_to_string("/etc/machine-id").ok()?;
    u64::from_str_radix(text.get(..16)?, 16).ok()
}

/// # Safety
/// * As for `ibv_open_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    outcome::object(open(device))
}

fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    engine::get()?;
    let events = Arc::new(AsyncEvents::new()?);
    // SAFETY: numbers, pointers, a lock (whose initial state is all zeros) and functions that may be absent.
    let mut table: verbs_context = unsafe { zeroed() };
    // What is absent is answered with EOPNOTSUPP by the inline functions themselves.
    table.query_port = Some(query_port);
    table.create_cq_ex = Some(cq::create_cq_ex);
    table.query_device_ex = Some(query_device_ex);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.sz = size_of::<verbs_context>();
    let context = &mut table.context;
    context.device = device;
    context.ops._compat_query_device = Some(ibv_query_device);
    context.ops._compat_query_port = Some(ibv_query_port);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.cmd_fd = -1;
    context.async_fd = events.fd();
    context.num_comp_vectors = 1;
    // `__VERBS_ABI_IS_EXTENDED`.
    context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    let table = object::make::<ibv_context>(table, Own { events });
    // SAFETY: just made.
    Ok(unsafe { &raw mut (*table).context })
}

/// # Safety
/// * As for `ibv_close_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: an open context that is not used any more.
    unsafe { object::free(context) };
    0
}

/// # Safety
/// * As for `ibv_query_device(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(_context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: room for the attributes.
    unsafe { attr.write(device_attr()) };
    0
}

fn device_attr() -> ibv_device_attr {
    const MANY: c_int = 1 << 16;
    // SAFETY: numbers. Those that are not set are of things that the device does not have.
    let mut attr: ibv_device_attr = unsafe { zeroed() };
    copy(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid().to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = u64::MAX;
    // Any page of 4 KiB or more.
    attr.page_size_cap = 0xffff_f000;
    attr.max_qp = MANY;
    attr.max_qp_wr = limit::MAX_QP_WR as c_int;
    attr.device_cap_flags =
        (ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID | ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN).0;
    attr.max_sge = limit::MAX_SGE as c_int;
    attr.max_sge_rd = limit::MAX_SGE as c_int;
    attr.max_cq = MANY;
    attr.max_cqe = limit::MAX_CQE as c_int;
    attr.max_mr = MANY;
    attr.max_pd = MANY;
    attr.max_qp_rd_atom = limit::MAX_RD_ATOMIC.into();
    attr.max_res_rd_atom = MANY * c_int::from(limit::MAX_RD_ATOMIC);
    attr.max_qp_init_rd_atom = limit::MAX_RD_ATOMIC.into();
    attr.atomic_cap = ibv_atomic_cap::IBV_ATOMIC_HCA;
    attr.max_srq = MANY;
    attr.max_srq_wr = limit::MAX_SRQ_WR as c_int;
    attr.max_srq_sge = limit::MAX_SGE as c_int;
    attr.max_pkeys = 1;
    // 4.096 us * 2^15: a process may have to wait for a processor before it answers.
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    attr
}

/// # Safety
/// * As for `ibv_query_device_ex(3)`; `size` is that of the struct that the program was built with.
unsafe extern "C" fn query_device_ex(
    _context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: size_t,
) -> c_int {
    // SAFETY: NULL or an input.
    if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
        return outcome::value(Err(Errno::EINVAL));
    }
    // SAFETY: numbers; nothing that the extension reports is there.
    let mut ours: ibv_device_attr_ex = unsafe { zeroed() };
    ours.orig_attr = device_attr();
    ours.device_cap_flags_ex = ours.orig_attr.device_cap_flags.into();
    ours.phys_port_cnt_ex = 1;
    // SAFETY: room for `size` bytes.
    unsafe { fill(attr, &ours, size) };
    0
}

/// Fills a struct of which the program knows `size` bytes.
///
/// # Safety
/// * `to` has room for `size` bytes, and `T` no padding that matters.
unsafe fn fill<T>(to: *mut T, from: &T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast::<u8>(), known) };
    // SAFETY: as above.
    let rest = unsafe { to.cast::<u8>().add(known) };
    // SAFETY: as above.
    unsafe { rest.write_bytes(0, size - known) };
}

/// For programs of before the attributes had `port_cap_flags2`.
///
/// # Safety
/// * As for `ibv_query_port(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: room for what the struct then had.
    unsafe { query_port(context, port, attr.cast(), offset_of!(ibv_port_attr, port_cap_flags2)) }
}

/// # Safety
/// * As for `ibv_query_port(3)`; `size` is that of the struct that the program was built with.
unsafe extern "C" fn query_port(_context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr, size: size_t) -> c_int {
    if u32::from(port) != PORT {
        return outcome::value(Err(Errno::EINVAL));
    }
    // SAFETY: numbers. A RoCE port has no LID and no subnet manager.
    let mut ours: ibv_port_attr = unsafe { zeroed() };
    ours.state = ibv_port_state::IBV_PORT_ACTIVE;
    ours.max_mtu = ibv_mtu::IBV_MTU_4096;
    // Of the Ethernet frames of 1500 bytes that most hosts have.
    ours.active_mtu = ibv_mtu::IBV_MTU_1024;
    ours.gid_tbl_len = GID_TABLE_LENGTH as c_int;
    ours.port_cap_flags = (ibv_port_cap_flags::IBV_PORT_CM_SUP | ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS).0;
    ours.max_msg_sz = limit::MAX_MESSAGE;
    ours.pkey_tbl_len = 1;
    ours.max_vl_num = 1;
    ours.active_width = WIDTH_4X;
    ours.active_speed = SPEED_SDR;
    ours.phys_state = LINK_UP;
    ours.link_layer = ETHERNET;
    ours.flags = GRH_REQUIRED;
    // SAFETY: room for `size` bytes.
    unsafe { fill(attr, &ours, size) };
    0
}

/// # Safety
/// * As for `ibv_query_port_speed(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(_context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int {
    if port != PORT {
        return outcome::value(Err(Errno::EINVAL));
    }
    // SAFETY: room for a number.
    unsafe { *speed = SPEED };
    0
}

/// An entry of the GID table; `None` for an index without an address. EINVAL for what is no index of the port.
fn gid_entry(port: u32, index: u32) -> Result<Option<addresses::Entry>, Errno> {
    if port != PORT || index as usize >= GID_TABLE_LENGTH {
        return Err(Errno::EINVAL);
    }
    Ok(addresses::table().into_iter().nth(index as usize).filter(|entry| entry.gid != [0; 16]))
}

/// # Safety
/// * As for `ibv_query_gid(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let entry = u32::try_from(index).map_err(|_| Errno::EINVAL).and_then(|index| gid_entry(port.into(), index));
    outcome::status(entry.map(|entry| {
        let raw = entry.map_or([0; 16], |entry| entry.gid);
        // SAFETY: room for a GID.
        unsafe { gid.write(ibv_gid { raw }) };
    }))
}

fn public(entry: addresses::Entry, index: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid },
        gid_index: index,
        port_num: PORT,
        gid_type: rdma_sys::IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.ifindex,
    }
}

/// # Safety
/// * As for `ibv_query_gid_ex(3)`; `size` is that of the entry that the program was built with.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_ex(
    _context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: size_t,
) -> c_int {
    outcome::value(check_gid_query(flags, size).and_then(|()| {
        let entry = gid_entry(port, index)?.ok_or(Errno::ENODATA)?;
        // SAFETY: room for `size` bytes.
        unsafe { fill(to, &public(entry, index), size) };
        Ok(())
    }))
}

/// The number of entries, or a negative errno value.
///
/// # Safety
/// * As for `ibv_query_gid_table(3)`; `size` is that of the entry that the program was built with.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _ibv_query_gid_table(
    _context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max_entries: size_t,
    flags: u32,
    size: size_t,
) -> ssize_t {
    if let Err(errno) = check_gid_query(flags, size) {
        errno.set();
        return -(errno as ssize_t);
    }
    let table = addresses::table();
    let entries = table.into_iter().enumerate().filter(|(_, entry)| entry.gid != [0; 16]).take(max_entries);
    let mut filled = 0;
    for (index, entry) in entries {
        // SAFETY: room for `max_entries` of `size` bytes.
        let to = unsafe { to.byte_add(filled * size) };
        // SAFETY: as above.
        unsafe { fill(to, &public(entry, index as u32), size) };
        filled += 1;
    }
    filled as ssize_t
}

fn check_gid_query(flags: u32, size: usize) -> Result<(), Errno> {
    match size {
        _ if flags != 0 => Err(Errno::EOPNOTSUPP),
        size if size < size_of::<ibv_gid_entry>() => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Each version of the node for private names that rdma-core has had since its 34th: distributions' programs are
/// linked to one of them.
macro_rules! gid_type_at {
    ($($function:ident, $name:literal;)*) => {$(
        /// Writes `IBV_GID_TYPE_SYSFS_ROCE_V2`.
        ///
        /// # Safety
        /// * `gid_type` has room for an enum.
        #[unsafe(export_name = $name)]
        pub(crate) unsafe extern "C" fn $function(
            _context: *mut ibv_context, port: u8, index: c_uint, gid_type: *mut c_uint,
        ) -> c_int {
            outcome::status(gid_entry(port.into(), index).map(|_| {
                // SAFETY: the caller's promise.
                unsafe { *gid_type = 1 };
            }))
        }
    )*};
}

gid_type_at! {
    query_gid_type_34, "ibv_query_gid_type@IBVERBS_PRIVATE_34";
    query_gid_type_57, "ibv_query_gid_type@IBVERBS_PRIVATE_57";
    query_gid_type_59, "ibv_query_gid_type@IBVERBS_PRIVATE_59";
    query_gid_type_64, "ibv_query_gid_type@IBVERBS_PRIVATE_64";
    query_gid_type_65, "ibv_query_gid_type@IBVERBS_PRIVATE_65";
}

/// # Safety
/// * As for `ibv_query_pkey(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    _context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if u32::from(port) != PORT || index != 0 {
        return outcome::status(Err(Errno::EINVAL));
    }
    // SAFETY: room for a key.
    unsafe { *pkey = PKEY.to_be() };
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_pkey_index(_context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    let found = u32::from(port) == PORT && u16::from_be(pkey) == PKEY;
    outcome::status(if found { Ok(()) } else { Err(Errno::EINVAL) })
}

/// What an asynchronous event is about.
enum Element {
    Cq,
    Qp,
    Srq,
    Port,
}

impl Element {
    /// By the value: programs bring events back in structs of their own.
    fn of(kind: u32) -> Element {
        use ibv_event_type as kinds;
        const CQ_ERR: u32 = kinds::IBV_EVENT_CQ_ERR as u32;
        const QP_FATAL: u32 = kinds::IBV_EVENT_QP_FATAL as u32;
        const PATH_MIG_ERR: u32 = kinds::IBV_EVENT_PATH_MIG_ERR as u32;
        const LAST_WQE: u32 = kinds::IBV_EVENT_QP_LAST_WQE_REACHED as u32;
        const SRQ_ERR: u32 = kinds::IBV_EVENT_SRQ_ERR as u32;
        const SRQ_LIMIT: u32 = kinds::IBV_EVENT_SRQ_LIMIT_REACHED as u32;
        match kind {
            CQ_ERR => Element::Cq,
            QP_FATAL..=PATH_MIG_ERR | LAST_WQE => Element::Qp,
            SRQ_ERR | SRQ_LIMIT => Element::Srq,
            _ => Element::Port,
        }
    }
}

/// The object of a cookie that the engine was given with it.
fn object_of<T>(event: &AsyncEvent) -> *mut T {
    ptr::with_exposed_provenance_mut(event.element)
}

/// Remembers that an event must be acknowledged. Its object is still there: what goes away withdraws its events.
fn hand_out(event: &AsyncEvent) {
    let handed_out: &HandedOut = match Element::of(event.kind as u32) {
        // SAFETY: a cookie of this kind.
        Element::Cq => &unsafe { own(object_of::<ibv_cq>(event)) }.async_events,
        // SAFETY: as above.
        Element::Qp => &unsafe { own(object_of::<ibv_qp>(event)) }.async_events,
        // SAFETY: as above.
        Element::Srq => &unsafe { own(object_of::<ibv_srq>(event)) }.async_events,
        Element::Port => return,
    };
    handed_out.one_more();
}

/// # Safety
/// * As for `ibv_get_async_event(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, to: *mut ibv_async_event) -> c_int {
    // SAFETY: an open context.
    let events = &unsafe { own(context) }.events;
    outcome::status(events.pop_with(hand_out).map(|event| {
        let element = match Element::of(event.kind as u32) {
            Element::Cq => ibv_async_event_element_t { cq: object_of(&event) },
            Element::Qp => ibv_async_event_element_t { qp: object_of(&event) },
            Element::Srq => ibv_async_event_element_t { srq: object_of(&event) },
            Element::Port => ibv_async_event_element_t { port_num: event.element as c_int },
        };
        // SAFETY: room for an event.
        unsafe { to.write(ibv_async_event { element, event_type: event.kind }) };
    }))
}

/// # Safety
/// * As for `ibv_ack_async_event(3)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // Not as the enum: a program could have another value there.
    // SAFETY: an event that was handed out, here and below.
    let kind = unsafe { &raw const (*event).event_type }.cast::<u32>();
    // SAFETY: as above.
    let kind = unsafe { *kind };
    // SAFETY: as above.
    let element = unsafe { &raw const (*event).element };
    // SAFETY: as above. All its members can be read.
    let element = unsafe { &*element };
    let acknowledged = match Element::of(kind) {
        // SAFETY: the member of this kind of event, here and below.
        Element::Cq => acknowledged!(unsafe { element.cq }, async_events_completed),
        // SAFETY: as above.
        Element::Qp => acknowledged!(unsafe { element.qp }, events_completed),
        // SAFETY: as above.
        Element::Srq => acknowledged!(unsafe { element.srq }, events_completed),
        Element::Port => return,
    };
    // SAFETY: an object cannot be destroyed before its events are acknowledged.
    unsafe { acknowledged.add(1) };
}

/// A child of a fork gets errors from all objects, so there is nothing to prepare.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_uint {
    rdma_sys::IBV_FORK_UNNEEDED
}

/// Memory is not pinned, so that a fork does no harm to it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: size_t) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file of the kernel into `buffer`, without the newline at its end; the number of bytes, or -1.
///
/// # Safety
/// * `directory` and `file` are C strings, and `buffer` has room for `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let directory = unsafe { CStr::from_ptr(directory) };
    // SAFETY: as above.
    let file = unsafe { CStr::from_ptr(file) };
    let path = [directory, file].map(|part| Path::new(std::ffi::OsStr::from_bytes(part.to_bytes())));
    outcome::count(read_line(&path[0].join(path[1]), size).map(|text| {
        // SAFETY: `read_line` reads no more than `size` bytes.
        unsafe { ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), text.len()) };
        if text.len() < size {
            // SAFETY: as above, one byte less.
            let end = unsafe { buffer.add(text.len()) };
            // SAFETY: as above.
            unsafe { *end = 0 };
        }
        text.len() as c_int
    }))
}

fn read_line(path: &Path, size: usize) -> Result<Vec<u8>, Errno> {
    let mut text = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(size as u64).read_to_end(&mut text))
        .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    text.pop_if(|last| *last == b'\n');
    Ok(text)
}
