import gossipq.Client;
import gossipq.GossipqException;
import gossipq.Message;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** The Java client as a driver of `gossipq client conformance`: JSON lines in, JSON lines out. */
public final class Driver {
    private static final Map<String, Message> HELD = new HashMap<>();
    private static final BlockingQueue<String> LINES = new LinkedBlockingQueue<>();
    private static final long PING_MS = 500;
    private static Client client;

    public static void main(String[] words) throws Exception {
        Thread reader = new Thread(Driver::read);
        reader.setDaemon(true);
        reader.start();
        for (String line = next(); !line.isEmpty(); line = next()) {
            Map<?, ?> said = (Map<?, ?>) new Json(line).value();
            String answer;
            try {
                answer = run(said);
            } catch (GossipqException error) {
                answer = "{\"error\": " + quoted(error.code()) + ", \"message\": " + quoted(error.getMessage()) + "}";
            }
            System.out.println(answer);
            System.out.flush();
            if (said.get("do").equals("close")) return;
        }
    }

    /** What is said, and "" at its end: whether a pipe has ended cannot be asked without waiting for that. */
    private static void read() {
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).lines().forEach(LINES::add);
        LINES.add("");
    }

    /** The next line; the client shows that it is there meanwhile. */
    private static String next() throws InterruptedException {
        for (;;) {
            String line = LINES.poll(PING_MS, TimeUnit.MILLISECONDS);
            if (line != null) return line;
            try {
                if (client != null) client.ping();
            } catch (GossipqException error) {
                continue; // the next call tells of it
            }
        }
    }

    private static String run(Map<?, ?> said) {
        switch ((String) said.get("do")) {
            case "connect":
                if (client != null) client.close();
                client = new Client(((List<?>) said.get("servers")).toArray(new String[0]));
                if (said.get("token") != null) client.showing((String) said.get("token"));
                return "{}";
            case "publish": {
                StringJoiner places = new StringJoiner(", ", "{\"places\": [", "]}");
                client.waiting(said.get("timeout_ms") == null ? Long.MAX_VALUE : (Long) said.get("timeout_ms"));
                for (Object each : (List<?>) said.get("records")) places.add(publish(said, (Map<?, ?>) each));
                client.waiting(Long.MAX_VALUE);
                return places.toString();
            }
            case "subscribe":
                client.subscribe((String) said.get("topic"), (String) said.get("group"));
                return "{}";
            case "next":
                return shown(client.next((Long) said.get("wait_ms")));
            case "ack":
                return done(client.ack(HELD.get(name(said.get("partition"), said.get("offset")))));
            case "nack":
                return done(client.nack(HELD.get(name(said.get("partition"), said.get("offset"))), (String) said.get("reason")));
            case "release":
                return done(client.release(HELD.get(name(said.get("partition"), said.get("offset")))));
            default:
                client.close();
                return "{}";
        }
    }

    private static String done(boolean settled) {
        return settled ? "{}" : "{\"error\": \"lease_lost\", \"message\": \"others have the record by now\"}";
    }

    private static String publish(Map<?, ?> said, Map<?, ?> record) {
        String topic = (String) said.get("topic"), route = said.get("route") == null ? "" : (String) said.get("route");
        long delayMs = said.get("delay_ms") == null ? 0 : (Long) said.get("delay_ms");
        Map<String, byte[]> headers = new LinkedHashMap<>();
        Map<?, ?> given = record.containsKey("headers") ? (Map<?, ?>) record.get("headers") : Map.of();
        given.forEach((name, text) -> headers.put((String) name, raw(text)));
        byte[] value = raw(record.get("value")), key = raw(record.get("key")), id = raw(record.get("id"));
        Client.Place place = client.publish(topic, value, key, headers, id, route, delayMs);
        return "[" + place.partition + ", " + place.offset + "]";
    }

    private static String shown(Message m) {
        if (m == null) return "{\"record\": null}";
        HELD.put(name(m.partition, m.offset), m);
        StringJoiner headers = new StringJoiner(", ", "{", "}");
        m.headers.forEach((name, raw) -> headers.add(quoted(name) + ": " + quoted(b64(raw))));
        return "{\"record\": {\"partition\": " + m.partition + ", \"offset\": " + m.offset + ", \"attempt\": " + m.attempt
            + ", \"value\": " + quoted(b64(m.value)) + ", \"key\": " + quoted(b64(m.key)) + ", \"id\": " + quoted(b64(m.id))
            + ", \"headers\": " + headers + ", \"route\": " + quoted(m.route) + "}}";
    }

    private static String name(Object partition, Object offset) {
        return partition + "/" + offset;
    }

    private static byte[] raw(Object text) {
        return text == null ? new byte[0] : Base64.getDecoder().decode((String) text);
    }

    private static String b64(byte[] raw) {
        return Base64.getEncoder().encodeToString(raw);
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c < 0x20 || c == '"' || c == '\\' || c > 0x7e) out.append(String.format("\\u%04x", (int) c));
            else out.append(c);
        }
        return out.append('"').toString();
    }

    /** JSON, as far as a driver is told in it. */
    private static final class Json {
        private final String text;
        private int at;

        Json(String text) {
            this.text = text;
        }

        Object value() {
            blank();
            switch (text.charAt(at)) {
                case '{': {
                    Map<String, Object> map = new LinkedHashMap<>();
                    for (at++; !ends('}'); ) {
                        String name = (String) value();
                        blank();
                        at++; // the colon
                        map.put(name, value());
                    }
                    return map;
                }
                case '[': {
                    List<Object> list = new ArrayList<>();
                    for (at++; !ends(']'); ) list.add(value());
                    return list;
                }
                case '"': return string();
                case 't': at += 4; return true;
                case 'f': at += 5; return false;
                default: return number();
            }
        }

        private boolean ends(char end) {
            blank();
            if (text.charAt(at) == ',') at++;
            blank();
            if (text.charAt(at) != end) return false;
            at++;
            return true;
        }

        private void blank() {
            while (Character.isWhitespace(text.charAt(at))) at++;
        }

        private String string() {
            StringBuilder out = new StringBuilder();
            for (at++; text.charAt(at) != '"'; at++) {
                char c = text.charAt(at);
                if (c != '\\') out.append(c);
                else if (text.charAt(++at) == 'u') {
                    out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                    at += 4;
                } else {
                    int escape = "bfnrt".indexOf(text.charAt(at));
                    out.append(escape < 0 ? text.charAt(at) : "\b\f\n\r\t".charAt(escape));
                }
            }
            at++;
            return out.toString();
        }

        private Long number() {
            int from = at;
            while (at < text.length() && "-0123456789".indexOf(text.charAt(at)) >= 0) at++;
            return Long.valueOf(text.substring(from, at));
        }
    }
}
