package gossipq;

import java.net.Inet4Address;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.security.SecureRandom;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.zip.CRC32;
import org.zeromq.ZMQ;

/**
 * A client of gossipq. It belongs to one thread, does one thing at a time, and does not start a thread. If you work on one record for
 * longer than 4 s, call {@link #ping} meanwhile, or the record is delivered to another consumer. An interrupt of its thread ends a waiting
 * call with IllegalStateException; its request may be executed nevertheless.
 */
public final class Client implements AutoCloseable {
    private static final int HELLO = 1, PING = 3, BYE = 5, REFUSED = 6, RESET = 7, CONFIRM = 17, PUBLISH_PLAIN = 18;
    private static final int SHARE = 31, STARTED = 45, SUBSCRIBE = 32, UNSUBSCRIBE = 34, ACK = 37, NACK = 39, DELIVER_PLAIN = 46, RESOLVE = 64;
    private static final int VERSION = 2, HEADER_BYTES = 24, CREDIT = 100, CREDIT_BYTES = 1 << 20, TOKEN_BYTES = 32, REASON_MAX = 2048, SHARDS_MAX = 0xffff;
    private static final long SILENT_MS = 3_000, PING_MS = 1_000, AGAIN_MS = 50, HELLO_AGAIN_MS = 1_000, REDIAL_MS = 100;
    /** Of a connection: or it could not be made. */
    private static final int LOST = ZMQ.EVENT_DISCONNECTED | ZMQ.EVENT_CONNECT_RETRIED;
    private static final Set<String> OVER = Set.of("no_session", "no_subscription", "not_leader");
    /** Of a node that the others do not hear, for as long as that lasts. */
    private static final Set<String> AWAY = Set.of("not_leader", "busy", "joining");
    /** By a topic that is known from before. */
    private static final Set<String> MOVED = Set.of("unknown_topic", "wrong_shard");
    private static final long FRAME_BYTES_MAX = 17_899_520; // PROTOCOL.md section 14
    private static final Pattern NAMED = Pattern.compile("tcp://([A-Za-z0-9_][A-Za-z0-9_.-]*):(\\d+)");
    private static final byte[] NOTHING = new byte[0];

    private final ZMQ.Context context = ZMQ.context(1);
    private final Deque<String> addresses = new ArrayDeque<>();
    private final Map<String, String> known = new ConcurrentHashMap<>(); // name of a host -> its last address
    private final byte[] session = new byte[16];
    private final Map<String, Topic> topics = new HashMap<>();
    private final Map<Integer, List<Object>> groups = new TreeMap<>(); // shard -> fields of its SUBSCRIBE
    private final Map<Integer, Long> terms = new HashMap<>(); // shard -> of its newest leader
    private final Deque<Waiting> waiting = new ArrayDeque<>();
    private final List<Waiting> held = new ArrayList<>(); // what the user has
    private final Set<Integer> joined = new HashSet<>();
    private final Map<Integer, Long> unanswered = new HashMap<>(); // shard -> since when what was said there has no answer
    private ZMQ.Socket socket;
    private ZMQ.Socket monitor; // has something to read when the connection is lost
    private ZMQ.Poller poller; // of both
    private boolean lost;
    private long dialedMs = now() - REDIAL_MS;
    private int dials;
    private long patientMs = now(); // until then who was refused does not greet again
    private long request;
    private long asked; // the one whose answer is waited for
    private long pingMs;
    private long waitMs = Long.MAX_VALUE;
    private long endMs = Long.MAX_VALUE; // of the call that goes on
    private byte[] token = NOTHING;
    private GossipqException ended; // why a shard of the group is over: what came from the others is shown, and then this
    private boolean closed;

    private static final class Topic {
        long id;
        int[] shards;
    }

    private static final class Waiting {
        int shard;
        long key;
        Message message;
    }

    private static final class Heard {
        int version = VERSION;
        int verb;
        long request;
        List<?> fields;
    }

    /** One address is enough, others are tried when its node is gone; without any it is $GOSSIPQ_SERVER, or this host's node. */
    public Client(String... servers) {
        String given = System.getenv("GOSSIPQ_SERVER");
        if (servers.length > 0) addresses.addAll(Arrays.asList(servers));
        else Collections.addAll(addresses, (given == null ? "tcp://127.0.0.1:7700" : given).split(","));
        new SecureRandom().nextBytes(session);
        session[0] &= 0x7f;
        dial();
    }

    /** How long publish, ack and the like may take; then they throw GossipqException with the code "not_confirmed": it may
     * be done. By default for ever. */
    public Client waiting(long ms) {
        waitMs = ms;
        return this;
    }

    /** Shows a token to a closed cluster: gq_ and 64 hexadecimal digits. It does not leave this machine. */
    public Client showing(String text) {
        if (!text.matches("gq_[0-9a-f]{64}")) throw new IllegalArgumentException("this is no token: one begins with gq_");
        for (String address : addresses) {
            if (!address.matches("tcp://(127\\.[0-9.]+|localhost|\\[::1\\]):.*")) {
                throw new IllegalArgumentException("the token would cross a network in the clear, where others may read it");
            }
        }
        token = new byte[TOKEN_BYTES];
        for (int i = 0; i < token.length; i++) token[i] = (byte) Integer.parseInt(text.substring(3 + 2 * i, 5 + 2 * i), 16);
        dial();
        return this;
    }

    /** A place where a record is stored. */
    public static final class Place {
        public final int partition;
        public final long offset;
        /** It had been stored before, under this id. */
        public final boolean duplicate;

        Place(int partition, long offset, boolean duplicate) {
            this.partition = partition;
            this.offset = offset;
            this.duplicate = duplicate;
        }
    }

    /** Returns when the record is on a majority of disks. */
    public Place publish(String topic, byte[] value, byte[] key) {
        return publish(topic, value, key, Collections.emptyMap(), NOTHING);
    }

    /** What is published again under the same id is stored once; without one the client makes one up, so that asking again is safe. */
    public Place publish(String topic, byte[] value, byte[] key, Map<String, byte[]> headers, byte[] id) {
        return publish(topic, value, key, headers, id, "", 0);
    }

    /** `route`: words separated by dots. `delayMs`: until consumers get it; its offset is -1 then, unless that is 0. */
    public Place publish(String topic, byte[] value, byte[] key, Map<String, byte[]> headers, byte[] id, String route, long delayMs) {
        begin();
        byte[] name = id.length > 0 ? id : Long.toHexString(new SecureRandom().nextLong()).getBytes();
        byte[] body = Pack.pack(List.of(List.of(value, key, headers, name)));
        if (body.length > FRAME_BYTES_MAX) { // a node would end the connection
            throw new GossipqException("too_large", "record of " + body.length + " bytes", "a value may have 16 MiB");
        }
        CRC32 crc = new CRC32();
        crc.update(key.length > 0 ? key : name);
        return with(topic, false, found -> publish(found, (int) (crc.getValue() % found.shards.length), body, route, delayMs));
    }

    private Place publish(Topic found, int partition, byte[] body, String route, long delayMs) {
        List<?> answer = ask(PUBLISH_PLAIN, found.shards[partition], List.of(found.id * 65536 + partition, "stored", route, delayMs), body);
        try {
            List<?> run = (List<?>) ((List<?>) ((List<?>) ((List<?>) answer.get(3)).get(0)).get(1)).get(0); // where it was stored first
            return new Place(partition, (Long) run.get(1), run.size() > 4 && (Boolean) run.get(4));
        } catch (ClassCastException | IndexOutOfBoundsException error) {
            throw unreadable();
        }
    }

    /** Consumes a topic for a group, whose consumers share its records. A client consumes one topic. */
    public void subscribe(String topic, String group) {
        if (!groups.isEmpty() && ended == null) throw new IllegalStateException("this client consumes already: take another one");
        begin();
        held.clear();
        if (ended != null) leave();
        ended = null;
        with(topic, true, found -> {
            subscribe(found, group);
            return null;
        });
    }

    private void subscribe(Topic found, String group) {
        for (int i = 0; i < found.shards.length; i++) {
            int shard = found.shards[i];
            List<Object> fields = groups.computeIfAbsent(shard, number -> new ArrayList<>(Arrays.asList(
                1 + number, group, new ArrayList<>(), CREDIT, CREDIT_BYTES, List.of(), false, List.of(), List.of(), true, List.of(), true, true, true)));
            @SuppressWarnings("unchecked")
            List<Object> starts = (List<Object>) fields.get(2);
            starts.add(List.of(found.id * 65536 + i, "first"));
            joined.remove(shard);
        }
        try {
            goAhead();
            if (ended != null) throw ended;
        } catch (GossipqException error) {
            leave();
            ended = null;
            throw error;
        }
    }

    /** Nothing more is consumed. What the user has can still be acked. */
    private void leave() {
        for (int shard : List.copyOf(groups.keySet())) {
            if (held.stream().noneMatch(each -> each.shard == shard)) say(UNSUBSCRIBE, shard, List.of(groups.remove(shard).get(0)), null);
        }
        waiting.clear();
    }

    /** The next record; null when none comes in time. */
    public Message next(long waitMs) {
        long lastMs = until(waitMs);
        while (waiting.isEmpty() && now() < lastMs) {
            ping();
            if (ended != null && waiting.isEmpty()) {
                leave();
                throw ended;
            }
            hear(Math.max(1, Math.min(lastMs - now(), PING_MS)));
        }
        Waiting found = waiting.poll();
        if (found == null) return null;
        held.removeIf(each -> each.key == found.key && each.message.offset == found.message.offset);
        held.add(found);
        if (groups.containsKey(found.shard)) say(STARTED, found.shard, List.of(groups.get(found.shard).get(0), List.of(range(found))), null);
        return found.message;
    }

    /** The record is done. Returns when that is stored: true, or false if others have it by now. */
    public boolean ack(Message message) {
        return settle(ACK, message);
    }

    /** It failed, for that reason: it comes again as the policy of the group says. */
    public boolean nack(Message message, String reason) {
        String kept = reason == null ? "" : reason.substring(0, Math.min(reason.length(), REASON_MAX));
        return settle(NACK, message, -1, true, kept);
    }

    /** It goes back: it comes again at once, to any consumer. That is no failure. */
    public boolean release(Message message) {
        return settle(NACK, message, -1, false);
    }

    private boolean settle(int verb, Message message, Object... more) {
        begin();
        for (Waiting each : held) {
            if (each.message != message) continue;
            if (!groups.containsKey(each.shard)) throw ended;
            List<Object> fields = new ArrayList<>();
            fields.add(groups.get(each.shard).get(0));
            fields.add(List.of(range(each)));
            fields.addAll(Arrays.asList(more));
            List<?> lost = ask(verb, each.shard, fields, null, () -> !groups.containsKey(each.shard));
            if (!groups.containsKey(each.shard)) throw ended;
            held.remove(each);
            boolean stored = lost.isEmpty() || ((List<?>) lost.get(0)).isEmpty();
            // a node that took over may have sent it again before it heard this
            if (stored) waiting.removeIf(other -> other.key == each.key && other.message.offset == message.offset);
            if (ended != null && waiting.isEmpty()) leave();
            return stored;
        }
        return false; // settled before
    }

    /** Shows that this client is there, and joins what it is to join. A silence ends it after 6 s: the next one goes on. */
    public void ping() {
        if (closed) throw new IllegalStateException("this client is closed");
        begin();
        goAhead();
    }

    private void begin() {
        endMs = until(waitMs);
    }

    private void goAhead() {
        endMs = Math.min(endMs, now() + 2 * SILENT_MS);
        show();
        listen();
        try {
            for (int shard : List.copyOf(groups.keySet())) if (!joined.contains(shard)) ask(PING, shard, List.of(), null);
        } catch (GossipqException error) {
            if (!error.code().equals("not_confirmed")) throw error; // nobody answers: the next one goes on
        }
    }

    /** Takes what has come, and dials when that is over. */
    private void listen() {
        while (hear(0) != null) continue;
        if (lost || unanswered.values().stream().anyMatch(sinceMs -> now() > sinceMs + SILENT_MS)) dial();
    }

    /** One PING a second to each shard, all at once: in a slow network, one after the other would take longer than a session lasts. */
    private void show() {
        if (now() < pingMs + PING_MS) return;
        pingMs = now();
        for (int shard : groups.keySet()) {
            if (!joined.contains(shard)) continue;
            say(PING, shard, List.of(), null);
            unanswered.putIfAbsent(shard, pingMs);
        }
    }

    /** Gives back what was not acked. */
    @Override
    public void close() {
        if (closed) return;
        closed = true;
        boolean interrupted = Thread.interrupted(); // JeroMQ could not wait then
        for (int shard : joined) say(BYE, shard, List.of(), null);
        socket.setLinger(200);
        hangUp(socket, monitor);
        context.term();
        if (interrupted) Thread.currentThread().interrupt();
    }

    // --- the one rule of recovery: what is over is joined again, what has no answer is asked again

    private List<?> ask(int verb, int shard, List<?> fields, byte[] body) {
        return ask(verb, shard, fields, body, () -> false);
    }

    /** Nothing is asked (again) once it is `idle`: then there is no answer. */
    private List<?> ask(int verb, int shard, List<?> fields, byte[] body, BooleanSupplier idle) {
        long moveMs = now() + SILENT_MS;
        boolean unsure = false; // whether an earlier sending of the record may be stored
        for (;;) {
            if (closed) throw new IllegalStateException("this client is closed");
            goOn();
            if (now() >= endMs) throw new GossipqException("not_confirmed", "no answer came in time: it may be done", "");
            listen();
            try {
                if (verb != HELLO && verb != SUBSCRIBE && !joined.contains(shard)) join(shard);
            } catch (GossipqException error) {
                throw unsure ? doubtful(error) : error;
            }
            if (idle.getAsBoolean()) return List.of();
            Heard answer = once(verb, shard, fields, body);
            String code = answer == null || answer.verb != REFUSED ? "" : text(answer.fields, 0);
            unsure |= verb == PUBLISH_PLAIN && (answer == null || code.equals("not_leader"));
            if (answer == null) {
                if (now() < endMs) dial(); // else the next call finds out whether it is a silence
                continue;
            }
            if (answer.verb != REFUSED) return answer.fields;
            if (!AWAY.contains(code) && !OVER.contains(code)) {
                GossipqException error = new GossipqException(code, text(answer.fields, 1), text(answer.fields, 2));
                throw unsure && !MOVED.contains(code) ? doubtful(error) : error;
            }
            if (OVER.contains(code)) over(shard);
            if (code.equals("no_session") && verb == SUBSCRIBE) greet(shard);
            if (AWAY.contains(code) && now() > moveMs && addresses.size() > 1) {
                dial();
                moveMs = now() + SILENT_MS;
            }
            Object retryMs = answer.fields.size() > 3 ? answer.fields.get(3) : 0L;
            pause(Math.min(retryMs instanceof Long && (Long) retryMs > 0 ? (Long) retryMs : AGAIN_MS, Math.max(1, endMs - now())));
        }
    }

    private void join(int shard) {
        greet(shard);
        if (groups.containsKey(shard)) {
            try {
                ask(SUBSCRIBE, shard, holding(shard), null);
            } catch (GossipqException error) {
                if (error.code().equals("not_confirmed")) throw error;
                end(shard, error); // that is for who consumes, and nothing to who publishes
            }
        }
        joined.add(shard);
        List<Object> begun = new ArrayList<>(); // this leader may not know of it
        for (Waiting each : held) if (each.shard == shard) begun.add(range(each));
        if (!begun.isEmpty() && groups.containsKey(shard)) say(STARTED, shard, List.of(groups.get(shard).get(0), begun), null);
    }

    /** Fields of SUBSCRIBE, with what is here of the shard: the rest of what it gave goes back. */
    private List<Object> holding(int shard) {
        List<Object> here = new ArrayList<>(), fields = groups.get(shard);
        for (Waiting each : held) if (each.shard == shard) here.add(range(each));
        for (Waiting each : waiting) if (each.shard == shard) here.add(range(each));
        fields.set(7, here);
        return fields;
    }

    /** The other shards give no more either: nobody would work on it. */
    private void end(int shard, GossipqException error) {
        ended = error;
        patientMs = now() + AGAIN_MS;
        groups.remove(shard);
        groups.forEach((other, fields) -> {
            fields.set(3, 0);
            fields.set(4, 0);
            if (joined.contains(other)) say(SUBSCRIBE, other, holding(other), null);
        });
    }

    private void greet(int shard) {
        long earlyMs = Math.min(patientMs, endMs) - now();
        if (earlyMs > 0) pause(earlyMs);
        try {
            ask(HELLO, shard, List.of(session, "java", "0.2.0", token, "", NOTHING, true), null);
        } catch (GossipqException error) {
            if (!error.code().equals("not_confirmed")) patientMs = now() + HELLO_AGAIN_MS;
            throw error;
        }
    }

    private void over(int shard) {
        joined.remove(shard);
        unanswered.remove(shard);
        waiting.removeIf(each -> each.shard == shard);
    }

    /** A new socket each time: an old one would first send what it had queued. An address that is none is passed over, and one where
     * nobody is when that is known. */
    private void dial() {
        long earlyMs = dialedMs + REDIAL_MS - now();
        if (earlyMs > 0) pause(earlyMs);
        ZMQ.Socket old = socket, deaf = monitor;
        for (int left = addresses.size(); ; left--) {
            String address = addresses.poll();
            addresses.add(address);
            ZMQ.Socket made = context.socket(ZMQ.DEALER);
            made.setLinger(0);
            made.setMaxMsgSize(FRAME_BYTES_MAX);
            made.setIPv4Only(!address.contains("["));
            ZMQ.Socket watch = watch(made);
            try {
                made.connect(numeric(address));
                socket = made;
                monitor = watch;
                break;
            } catch (RuntimeException error) { // of JeroMQ: ZMQException, IllegalArgumentException
                hangUp(made, watch);
                if (left <= 1) throw error;
            }
        }
        if (old != null) {
            old.setLinger(0);
            hangUp(old, deaf);
        }
        poller = new ZMQ.Poller(2);
        poller.register(socket, ZMQ.Poller.POLLIN);
        poller.register(monitor, ZMQ.Poller.POLLIN);
        lost = false;
        dialedMs = now();
        joined.clear();
        unanswered.clear();
        waiting.clear();
    }

    /**
     * tcp://NUMBER:PORT for tcp://NAME:PORT. JeroMQ would look the name up in this thread, for as long as a name server is silent. A name
     * without an answer keeps its last address.
     */
    private String numeric(String address) {
        Matcher named = NAMED.matcher(address);
        if (!named.matches() || named.group(1).matches("[0-9.]+")) return address;
        String name = named.group(1);
        Thread looking = new Thread(() -> lookUp(name, known));
        looking.setDaemon(true);
        looking.start();
        try {
            looking.join(SILENT_MS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        String found = known.get(name);
        if (found == null) throw new IllegalArgumentException("no address of " + name + " is known");
        return "tcp://" + found + ":" + named.group(2);
    }

    private static void lookUp(String name, Map<String, String> known) {
        try {
            for (InetAddress each : InetAddress.getAllByName(name)) {
                if (!(each instanceof Inet4Address)) continue; // names stay with IPv4
                known.put(name, each.getHostAddress());
                return;
            }
        } catch (UnknownHostException error) {
            // its last address serves
        }
    }

    private ZMQ.Socket watch(ZMQ.Socket made) {
        String place = "inproc://monitor-" + ++dials;
        made.monitor(place, LOST);
        ZMQ.Socket watch = context.socket(ZMQ.PAIR);
        watch.setLinger(0);
        watch.connect(place);
        return watch;
    }

    private static void hangUp(ZMQ.Socket old, ZMQ.Socket watch) {
        old.monitor(null, 0); // first: nobody reads it any more
        watch.close();
        old.close();
    }

    private long say(int verb, int shard, List<?> fields, byte[] body) {
        byte[] packed = Pack.pack(fields);
        ByteBuffer frame = ByteBuffer.allocate(HEADER_BYTES + packed.length).order(ByteOrder.LITTLE_ENDIAN);
        frame.put((byte) 'G').put((byte) 'Q').put((byte) VERSION).put((byte) verb).putShort((short) shard).putShort((short) 0);
        frame.putLong(++request).putLong(0).put(packed);
        boolean interrupted = Thread.interrupted(); // JeroMQ would forget it
        socket.send(frame.array(), body == null ? 0 : ZMQ.SNDMORE);
        if (body != null) socket.send(body, 0);
        if (interrupted) Thread.currentThread().interrupt();
        return request;
    }

    /** The answer; null when none comes for 3 s, or while the call may take, or the connection is lost. */
    private Heard once(int verb, int shard, List<?> fields, byte[] body) {
        show();
        asked = say(verb, shard, fields, body);
        long saidMs = now();
        unanswered.putIfAbsent(shard, saidMs);
        while (!lost) {
            long leftMs = Math.min(unanswered.getOrDefault(shard, saidMs) + SILENT_MS, endMs) - now();
            if (leftMs <= 0) return null;
            Heard heard = hear(leftMs);
            if (heard == null || heard.request != asked) continue;
            if (heard.version == VERSION) return heard;
            String text = "the node speaks protocol version " + heard.version + ", this client " + VERSION;
            throw new GossipqException("wrong_version", text, "");
        }
        return null;
    }

    /** The next message, if one comes in time; records and RESET are taken care of. */
    private Heard hear(long waitMs) {
        poller.poll(waitMs);
        byte[] control = socket.recv(ZMQ.DONTWAIT);
        if (control == null) {
            lost = poller.pollin(1);
            goOn();
            return null;
        }
        byte[] body = null;
        while (socket.hasReceiveMore()) body = socket.recv(0);
        if (control.length < HEADER_BYTES || control[0] != 'G' || control[1] != 'Q') return null;
        ByteBuffer head = ByteBuffer.wrap(control).order(ByteOrder.LITTLE_ENDIAN);
        int shard = head.getShort(4) & 0xffff;
        long term = head.getLong(16);
        Heard heard = new Heard();
        heard.verb = control[3] & 0xff;
        heard.request = head.getLong(8);
        heard.version = control[2];
        if (heard.version != VERSION) return heard;
        try {
            heard.fields = (List<?>) Pack.unpack(control, HEADER_BYTES);
            if (heard.fields == null) return null; // of somebody who is no node, too
            unanswered.remove(shard);
            boolean old = term < terms.merge(shard, term, Math::max); // from an old leader
            if (heard.verb == DELIVER_PLAIN && joined.contains(shard) && !old) take(shard, (List<?>) Pack.unpack(body, 0));
            if (heard.verb == SHARE && joined.contains(shard) && groups.containsKey(shard)) share(shard, (Long) heard.fields.get(1));
            if (heard.verb == RESET) for (Object each : (List<?>) heard.fields.get(0)) over(((Long) each).intValue());
            boolean unasked = heard.verb == REFUSED && heard.request != asked; // of a PING
            if (unasked && (AWAY.contains(text(heard.fields, 0)) || OVER.contains(text(heard.fields, 0)))) over(shard);
            if (heard.verb == CONFIRM) heard.request = (Long) ((List<?>) ((List<?>) heard.fields.get(0)).get(0)).get(0);
        } catch (RuntimeException error) {
            return null; // of somebody who is no node
        }
        return heard;
    }

    private void take(int shard, List<?> rows) {
        if (ended != null) return;
        for (Object row : rows) {
            Waiting each = new Waiting();
            each.shard = shard;
            each.key = (Long) ((List<?>) row).get(0);
            each.message = new Message((List<?>) row);
            waiting.add(each);
        }
    }

    /** Gives back records that the user has not begun with, the last first: another consumer of the group has nothing to do. */
    private void share(int shard, long keep) {
        List<Waiting> back = new ArrayList<>();
        for (Waiting each : waiting) if (each.shard == shard) back.add(each);
        long has = held.stream().filter(each -> each.shard == shard).count();
        back.subList(0, (int) Math.min(back.size(), Math.max(0, keep - has))).clear();
        if (back.isEmpty()) return;
        waiting.removeAll(back);
        List<Object> ranges = new ArrayList<>();
        for (Waiting each : back) ranges.add(range(each));
        say(NACK, shard, List.of(groups.get(shard).get(0), ranges, -1, false), null); // if it is refused, the shard is joined anew
    }

    /** What a topic is asked to do. What is known of it may be old: it may have been made anew, under another id; or it is `made` then. */
    private <T> T with(String name, boolean made, Function<Topic, T> call) {
        boolean old = topics.containsKey(name);
        try {
            return call.apply(topic(name, true));
        } catch (GossipqException error) {
            if (MOVED.contains(error.code())) topics.remove(name);
            if (!old || topics.containsKey(name)) throw error;
            return call.apply(topic(name, made));
        }
    }

    private Topic topic(String name, boolean made) {
        if (name.contains("*")) throw new GossipqException("bad_name", name + " is a pattern", "name the topic"); // any that fits would be it
        return topics.computeIfAbsent(name, missing -> {
            List<?> answer = ask(RESOLVE, 0, List.of(List.of(name), made), null);
            Topic found = new Topic();
            try {
                if (((List<?>) answer.get(0)).isEmpty()) throw new GossipqException("unknown_topic", "no topic " + name, "gossipq topic create " + name);
                List<?> info = (List<?>) ((List<?>) answer.get(0)).get(0);
                found.id = (Long) info.get(0);
                long[] shards = ((List<?>) info.get(4)).stream().mapToLong(shard -> (Long) shard).toArray();
                if (Arrays.stream(shards).anyMatch(shard -> shard < 0 || shard >= SHARDS_MAX)) throw unreadable();
                found.shards = Arrays.stream(shards).mapToInt(shard -> (int) shard).toArray();
            } catch (ClassCastException | IndexOutOfBoundsException | NullPointerException error) {
                throw unreadable();
            }
            if (found.shards.length == 0) throw new GossipqException("bad_request", name + " is a virtual topic", "name the real ones");
            return found;
        });
    }

    private static List<Object> range(Waiting each) {
        return List.of(each.key, each.message.offset, each.message.offset + 1);
    }

    private static GossipqException doubtful(GossipqException now) {
        return new GossipqException("not_confirmed", "it was sent before, and may be stored; now: " + now.getMessage(), "");
    }

    private static GossipqException unreadable() {
        return new GossipqException("protocol", "the node's answer cannot be read", "");
    }

    private static String text(List<?> fields, int at) {
        return fields.size() > at && fields.get(at) instanceof String ? (String) fields.get(at) : "";
    }

    private static long until(long waitMs) {
        return waitMs > Long.MAX_VALUE / 2 ? Long.MAX_VALUE : now() + waitMs;
    }

    private static long now() {
        return System.nanoTime() / 1_000_000;
    }

    private static void goOn() {
        if (Thread.currentThread().isInterrupted()) throw new IllegalStateException("interrupted");
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        goOn();
    }
}
