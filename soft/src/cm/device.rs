//! The one device, and the verbs with which connection management works on it.
//!
//! The verbs are looked up by name, and not called within the library: a library that the program has preloaded in front
//! must see what librdmacm does to its objects.

use super::id::Options;
use crate::uncancelled;
use nix::errno::Errno;
use rdma_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid, ibv_pd, ibv_port_attr, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_sa_path_rec, ibv_srq, ibv_srq_init_attr,
    ibv_srq_init_attr_ex, verbs_context,
};
use std::ffi::{CStr, c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::{Mutex, OnceLock};

/// The device's only port, and its only partition key.
pub(super) const PORT: u8 = 1;
pub(super) const PKEY: u16 = 0xffff;

/// A selector of a path record (IBTA 15.2.5.16).
const EXACTLY: u8 = 2;
/// 4.096 µs · 2^18 each way, of which the ACK timeout of the QP follows.
const PACKET_LIFE_TIME: u8 = 18;

macro_rules! verbs {
    ($($name:ident($($type:ty),*) $(-> $result:ty)?;)*) => {
        /// The verbs, as a program that is linked to libibverbs gets them.
        pub(super) struct Verbs {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Verbs {
            fn look_up() -> Option<Verbs> {
                $(
                    let name = CStr::from_bytes_with_nul(concat!("ibv_", stringify!($name), "\0").as_bytes()).ok()?;
                    let found = symbol(name)?;
                    // SAFETY: a function of this name has this type, by <infiniband/verbs.h>.
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(found)
                    };
                )*
                Some(Verbs { $($name),* })
            }
        }
    };
}

verbs! {
    get_device_list(*mut c_int) -> *mut *mut ibv_device;
    free_device_list(*mut *mut ibv_device);
    open_device(*mut ibv_device) -> *mut ibv_context;
    close_device(*mut ibv_context) -> c_int;
    query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    destroy_cq(*mut ibv_cq) -> c_int;
    create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    destroy_srq(*mut ibv_srq) -> c_int;
    create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    destroy_qp(*mut ibv_qp) -> c_int;
}

/// The node of these names, or, from a library without nodes, the name alone.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: C strings.
    let versioned = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), c"IBVERBS_1.1".as_ptr()) };
    if !versioned.is_null() {
        return Some(versioned);
    }
    // SAFETY: a C string.
    let plain = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!plain.is_null()).then_some(plain)
}

/// ENOSYS where there are none, as in a program that holds this library back from others.
pub(super) fn verbs() -> Result<&'static Verbs, Errno> {
    static VERBS: OnceLock<Option<Verbs>> = OnceLock::new();
    VERBS.get_or_init(Verbs::look_up).as_ref().ok_or(Errno::ENOSYS)
}

/// The outcome of a verb that returns an errno value.
pub(super) fn check(result: c_int) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        -1 => Err(Errno::last()),
        value => Err(Errno::from_raw(value.saturating_abs())),
    }
}

/// The outcome of a verb that returns an object, and leaves the reason in `errno` where there is none.
pub(super) fn object<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(Errno::last()) } else { Ok(object) }
}

/// The device, opened by the first identifier that needs it; it stays open, as with librdmacm.
pub(super) struct Device {
    pub(super) context: *mut ibv_context,
    /// For all identifiers whose programs bring none of their own.
    pub(super) pd: *mut ibv_pd,
    pub(super) guid: u64,
    /// `ibv_mtu`.
    pub(super) mtu: u8,
    pub(super) max_responder_resources: u8,
    pub(super) max_initiator_depth: u8,
}

// SAFETY: verbs may be called by any thread, and the fields are never written again.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

static DEVICE: OnceLock<Device> = OnceLock::new();

pub(super) fn get() -> Result<&'static Device, Errno> {
    crate::engine::get()?;
    static OPENING: Mutex<()> = Mutex::new(());
    if let Some(device) = DEVICE.get() {
        return Ok(device);
    }
    let _one = uncancelled::lock(&OPENING);
    match DEVICE.get() {
        Some(device) => Ok(device),
        None => {
            let device = open()?;
            Ok(DEVICE.get_or_init(|| device))
        }
    }
}

fn open() -> Result<Device, Errno> {
    let verbs = verbs()?;
    let mut count = 0;
    // SAFETY: room for a number.
    let list = object(unsafe { (verbs.get_device_list)(&raw mut count) })?;
    // SAFETY: the list has a NULL behind its last entry.
    let first = unsafe { *list };
    let context = if first.is_null() {
        Err(Errno::ENODEV)
    } else {
        // SAFETY: a device of the list.
        object(unsafe { (verbs.open_device)(first) })
    };
    // SAFETY: from `get_device_list`, and not used again.
    unsafe { (verbs.free_device_list)(list) };
    let context = context?;
    describe(verbs, context).inspect_err(|_| {
        // SAFETY: opened above, and nobody else's.
        unsafe { (verbs.close_device)(context) };
    })
}

fn describe(verbs: &Verbs, context: *mut ibv_context) -> Result<Device, Errno> {
    // SAFETY: numbers and characters, for all of which zero is a value.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: an open device, and room for its attributes.
    check(unsafe { (verbs.query_device)(context, &raw mut attr) })?;
    // SAFETY: numbers, for all of which zero is a value; the function fills in the older, shorter part of the struct.
    let mut port: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: an open device, and room for its port's attributes.
    check(unsafe { (verbs.query_port)(context, PORT, &raw mut port) })?;
    // SAFETY: an open device.
    let pd = object(unsafe { (verbs.alloc_pd)(context) })?;
    // The values of `struct rdma_conn_param` have 8 bits.
    let limit = |value: c_int| u8::try_from(value).unwrap_or(if value < 0 { 0 } else { u8::MAX });
    Ok(Device {
        context,
        pd,
        guid: u64::from_be(attr.node_guid),
        mtu: port.active_mtu as u8,
        max_responder_resources: limit(attr.max_qp_rd_atom),
        max_initiator_depth: limit(attr.max_qp_init_rd_atom),
    })
}

impl Device {
    /// The path record that a subnet administrator would give.
    pub(super) fn path(&self, source: [u8; 16], destination: [u8; 16], options: &Options) -> ibv_sa_path_rec {
        ibv_sa_path_rec {
            dgid: ibv_gid { raw: destination },
            sgid: ibv_gid { raw: source },
            dlid: 0,
            slid: 0,
            raw_traffic: 0,
            flow_label: 0,
            hop_limit: super::connection::HOP_LIMIT,
            traffic_class: options.tos,
            reversible: 1,
            numb_path: 1,
            pkey: PKEY.to_be(),
            sl: options.tos >> 5,
            mtu_selector: EXACTLY,
            mtu: self.mtu,
            rate_selector: EXACTLY,
            rate: 0,
            packet_life_time_selector: EXACTLY,
            packet_life_time: options.ack_timeout.map_or(PACKET_LIFE_TIME, |timeout| timeout.saturating_sub(1)),
            preference: 1,
        }
    }
}

/// `ibv_create_qp_ex`, which is an inline function: by ibv_create_qp(3) where that is enough, else by the context's
/// table.
///
/// # Safety
/// * `context` is an open device, and what `attr` names are valid objects.
pub(super) unsafe fn create_qp_ex(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    if attr.comp_mask == rdma_sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
        // SAFETY: valid objects; the struct begins as the smaller one does.
        return object(unsafe { (verbs()?.create_qp)(attr.pd, ptr::from_mut(attr).cast()) });
    }
    // SAFETY: an open device, by the caller's promise.
    let table = unsafe { extended(context) }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: an extended context has the table in front of it.
    let create = unsafe { (*table).create_qp_ex }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: valid objects, by the caller's promise.
    object(unsafe { create(context, attr) })
}

/// `ibv_create_srq_ex`, which is an inline function, too.
///
/// # Safety
/// * As for [`create_qp_ex`].
pub(super) unsafe fn create_srq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, Errno> {
    use rdma_sys::ibv_srq_init_attr_mask as mask;
    let basic = (mask::IBV_SRQ_INIT_ATTR_PD | mask::IBV_SRQ_INIT_ATTR_TYPE).0;
    if attr.comp_mask & !basic == 0 && attr.srq_type == rdma_sys::ibv_srq_type::IBV_SRQT_BASIC {
        // SAFETY: valid objects; the struct begins as the smaller one does.
        return object(unsafe { (verbs()?.create_srq)(attr.pd, ptr::from_mut(attr).cast()) });
    }
    // SAFETY: an open device, by the caller's promise.
    let table = unsafe { extended(context) }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: an extended context has the table in front of it.
    let create = unsafe { (*table).create_srq_ex }.ok_or(Errno::EOPNOTSUPP)?;
    // SAFETY: valid objects, by the caller's promise.
    object(unsafe { create(context, attr) })
}

/// The table of newer operations, which lies in front of a context that has one.
///
/// # Safety
/// * `context` is an open device.
unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: a valid object, by the caller's promise.
    let mark = unsafe { (*context).abi_compat };
    // `__VERBS_ABI_IS_EXTENDED`.
    (mark.addr() == usize::MAX).then(|| context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast())
}
