//! Latency and bandwidth between two processes, beside those of plain TCP between the same two, in the same run:
//!
//!     cargo test --release -p rdma_verbs_soft measure -- --ignored --nocapture

use super::tests::{Node, SIGNALED, Setup, connect_to};
use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

const SIZES: [usize; 5] = [8, 4096, 65536, 262_144, 1 << 20];
const CHILD: &str = "RDMA_SOFT_MEASURE";

fn rounds(size: usize) -> usize {
    if size <= 4096 { 50000 } else { 500 }
}

fn count(size: usize) -> usize {
    (256 << 20) / size.max(4096) / 10 * 10
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    match std::env::var(CHILD) {
        Ok(address) => child(&address),
        Err(_) => parent(),
    }
}

/// The first decile, which is what the work takes where nothing else runs, and the median.
fn deciles(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times[times.len() / 10], times[times.len() / 2]]
}

fn tcp_ping(socket: &mut TcpStream, buffer: &mut [u8], first: bool, rounds: usize) -> [f64; 2] {
    socket.set_nonblocking(true).unwrap();
    let spin = |socket: &mut TcpStream, mut buffer: &mut [u8]| {
        while !buffer.is_empty() {
            match socket.read(buffer) {
                Ok(count) => buffer = &mut buffer[count..],
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
            }
        }
    };
    let mut times = Vec::new();
    for _ in 0..rounds {
        let begin = Instant::now();
        if first {
            write_all(socket, buffer);
        }
        spin(socket, buffer);
        if !first {
            write_all(socket, buffer);
        }
        times.push(begin.elapsed().as_secs_f64() / 2.0 * 1e6);
    }
    socket.set_nonblocking(false).unwrap();
    deciles(times)
}

fn write_all(socket: &mut TcpStream, mut buffer: &[u8]) {
    while !buffer.is_empty() {
        match socket.write(buffer) {
            Ok(count) => buffer = &buffer[count..],
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

/// Sends, and waits for both completions, as `ibv_rc_pingpong` does.
fn rdma_ping(node: &Node, send: ibv_sge, recv: ibv_sge, first: bool, rounds: usize) -> [f64; 2] {
    node.recv(0, &[recv]);
    let mut times = Vec::new();
    for round in 0..rounds {
        let begin = Instant::now();
        if first {
            node.send(1, &[send]);
        }
        spin(node, 1);
        if round + 1 < rounds {
            node.recv(0, &[recv]);
        }
        if !first {
            node.send(1, &[send]);
        }
        spin(node, 0);
        times.push(begin.elapsed().as_secs_f64() / 2.0 * 1e6);
    }
    deciles(times)
}

fn spin(node: &Node, which: usize) {
    loop {
        if let Some(wc) = node.poll(which) {
            assert_eq!(wc.status, 0);
            return;
        }
    }
}

/// Keeps 64 requests on their way.
/// The best of ten parts, in MB/s.
fn best(count: usize, size: usize, mut part: impl FnMut(usize)) -> f64 {
    let times = (0..10).map(|_| {
        let begin = Instant::now();
        part(count / 10);
        begin.elapsed().as_secs_f64()
    });
    (count / 10 * size) as f64 / 1e6 / times.fold(f64::MAX, f64::min)
}

fn stream(node: &Node, operation: Operation, sge: ibv_sge, count: usize) {
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < 64 {
            node.post(0, operation, SIGNALED, &[sge]).unwrap();
            posted += 1;
        }
        if let Some(wc) = node.poll(0) {
            assert_eq!(wc.status, 0);
            done += 1;
        }
    }
}

struct Peer {
    node: Node,
    out: super::tests::Registered,
    into: super::tests::Registered,
}

fn prepare() -> Peer {
    let node = Node::new(Setup { timeout: 18, ..Setup::default() });
    let (out, into) = (node.memory(1 << 20), node.memory(1 << 20));
    Peer { node, out, into }
}

fn describe(peer: &Peer) -> String {
    format!("{} {} {}", peer.node.number, peer.into.address(0), peer.into.keys.rkey)
}

/// No byte further than the line goes.
fn read_line(socket: &mut TcpStream) -> String {
    let (mut line, mut byte) = (String::new(), [0]);
    while byte != *b"\n" {
        socket.read_exact(&mut byte).unwrap();
        line.push(byte[0] as char);
    }
    line
}

fn understand(line: &str) -> [u64; 3] {
    let mut numbers = line.split_whitespace().map(|word| word.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap())
}

fn child(address: &str) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    let peer = prepare();
    writeln!(socket, "{}", describe(&peer)).unwrap();
    let line = read_line(&mut socket);
    let [number, ..] = understand(&line);
    connect_to(&peer.node, number as u32);
    let mut buffer = vec![0; 1 << 20];
    for size in SIZES {
        tcp_ping(&mut socket, &mut buffer[..size], false, rounds(size));
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        socket.write_all(&byte).unwrap();
        rdma_ping(&peer.node, peer.out.sge(0, size), peer.into.sge(0, size), false, rounds(size));
    }
    for size in SIZES {
        for _ in 0..count(size) {
            socket.read_exact(&mut buffer[..size]).unwrap();
        }
        socket.write_all(&[1]).unwrap();
        // Writes need nobody here.
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        let total = count(size);
        for _ in 0..64.min(total) {
            peer.node.recv(0, &[peer.into.sge(0, size)]);
        }
        socket.write_all(&byte).unwrap();
        for done in 0..total {
            spin(&peer.node, 1);
            if done + 64 < total {
                peer.node.recv(0, &[peer.into.sge(0, size)]);
            }
        }
        socket.read_exact(&mut byte).unwrap();
    }
}

fn parent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "engine::measure::measure", "--ignored", "--nocapture"])
        .env(CHILD, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut socket, _) = listener.accept().unwrap();
    socket.set_nodelay(true).unwrap();
    let peer = prepare();
    let line = read_line(&mut socket);
    let [number, address, rkey] = understand(&line);
    connect_to(&peer.node, number as u32);
    writeln!(socket, "{}", describe(&peer)).unwrap();
    let mut buffer = vec![0; 1 << 20];
    println!("ping-pong  TCP, 10%    median    device    median     ratio   (µs, half a round trip)");
    for size in SIZES {
        let tcp = tcp_ping(&mut socket, &mut buffer[..size], true, rounds(size));
        let mut byte = [1];
        socket.write_all(&byte).unwrap();
        socket.read_exact(&mut byte).unwrap();
        let device = rdma_ping(&peer.node, peer.out.sge(0, size), peer.into.sge(0, size), true, rounds(size));
        let ratio = device[0] / tcp[0];
        println!("{size:>8} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {ratio:>9.2}", tcp[0], tcp[1], device[0], device[1]);
    }
    println!("stream          TCP       write     ratio        send     ratio   (MB/s)");
    for size in SIZES {
        let mut byte = [1];
        let tcp = best(count(size), size, |count| (0..count).for_each(|_| socket.write_all(&buffer[..size]).unwrap()));
        socket.read_exact(&mut byte).unwrap();
        let rkey = rkey as u32;
        let write = Operation::Write { address, rkey };
        let write = best(count(size), size, |count| stream(&peer.node, write, peer.out.sge(0, size), count));
        socket.write_all(&byte).unwrap();
        socket.read_exact(&mut byte).unwrap();
        let send = best(count(size), size, |count| stream(&peer.node, Operation::Send, peer.out.sge(0, size), count));
        socket.write_all(&byte).unwrap();
        println!("{size:>8} {tcp:>10.0} {write:>11.0} {:>9.2} {send:>11.0} {:>9.2}", write / tcp, send / tcp);
    }
    assert!(process.wait().unwrap().success());
}
