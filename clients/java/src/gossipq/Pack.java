package gossipq;

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** msgpack, as far as the client needs it: Long, Boolean, String, byte[], List, Map and null. */
final class Pack {
    private static final int DEPTH_MAX = 32, ROOM = 64;

    private Pack() {}

    static byte[] pack(Object value) {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        put(out, value);
        return out.toByteArray();
    }

    private static void put(ByteArrayOutputStream out, Object value) {
        if (value == null) out.write(0xc0);
        else if (value instanceof Boolean) out.write((Boolean) value ? 0xc3 : 0xc2);
        else if (value instanceof Number) {
            long number = ((Number) value).longValue();
            if (number >= 0 && number < 128) out.write((int) number);
            else tagged(out, 0xd3, number, 8);
        } else if (value instanceof String) {
            byte[] raw = ((String) value).getBytes(StandardCharsets.UTF_8);
            tagged(out, 0xdb, raw.length, 4);
            out.write(raw, 0, raw.length);
        } else if (value instanceof byte[]) {
            byte[] raw = (byte[]) value;
            tagged(out, 0xc6, raw.length, 4);
            out.write(raw, 0, raw.length);
        } else if (value instanceof List) {
            List<?> items = (List<?>) value;
            tagged(out, 0xdd, items.size(), 4);
            for (Object item : items) put(out, item);
        } else {
            Map<?, ?> items = (Map<?, ?>) value;
            tagged(out, 0xdf, items.size(), 4);
            for (Map.Entry<?, ?> item : items.entrySet()) {
                put(out, item.getKey());
                put(out, item.getValue());
            }
        }
    }

    private static void tagged(ByteArrayOutputStream out, int tag, long value, int width) {
        out.write(tag);
        for (int i = width - 1; i >= 0; i--) out.write((int) (value >> (8 * i)));
    }

    /** Throws IllegalArgumentException for bytes that are none. */
    static Object unpack(byte[] raw, int from) {
        ByteBuffer in = ByteBuffer.wrap(raw);
        in.position(from);
        try {
            return get(in, 0);
        } catch (RuntimeException error) {
            throw new IllegalArgumentException("what the node sent cannot be read", error);
        }
    }

    private static Object get(ByteBuffer in, int depth) {
        if (depth > DEPTH_MAX) throw new IllegalArgumentException("too deep");
        int tag = in.get() & 0xff;
        if (tag < 0x80) return (long) tag;
        if (tag >= 0xe0) return (long) (byte) tag;
        if (tag < 0x90) return map(in, tag & 0x0f, depth);
        if (tag < 0xa0) return list(in, tag & 0x0f, depth);
        if (tag < 0xc0) return text(in, tag & 0x1f);
        switch (tag) {
            case 0xc0: return null;
            case 0xc2: return false;
            case 0xc3: return true;
            case 0xc4: return bytes(in, in.get() & 0xff);
            case 0xc5: return bytes(in, in.getShort() & 0xffff);
            case 0xc6: return bytes(in, in.getInt());
            case 0xca: return (double) in.getFloat();
            case 0xcb: return in.getDouble();
            case 0xcc: return (long) (in.get() & 0xff);
            case 0xcd: return (long) (in.getShort() & 0xffff);
            case 0xce: return in.getInt() & 0xffffffffL;
            case 0xcf: case 0xd3: return in.getLong();
            case 0xd0: return (long) in.get();
            case 0xd1: return (long) in.getShort();
            case 0xd2: return (long) in.getInt();
            case 0xd9: return text(in, in.get() & 0xff);
            case 0xda: return text(in, in.getShort() & 0xffff);
            case 0xdb: return text(in, in.getInt());
            case 0xdc: return list(in, in.getShort() & 0xffff, depth);
            case 0xdd: return list(in, in.getInt(), depth);
            case 0xde: return map(in, in.getShort() & 0xffff, depth);
            case 0xdf: return map(in, in.getInt(), depth);
            default: throw new IllegalArgumentException("tag " + tag);
        }
    }

    private static byte[] bytes(ByteBuffer in, int size) {
        if (size < 0 || size > in.remaining()) throw new IllegalArgumentException("too long");
        byte[] raw = new byte[size];
        in.get(raw);
        return raw;
    }

    private static String text(ByteBuffer in, int size) {
        return new String(bytes(in, size), StandardCharsets.UTF_8);
    }

    private static List<Object> list(ByteBuffer in, int count, int depth) {
        if (count < 0 || count > in.remaining()) throw new IllegalArgumentException("too long");
        List<Object> items = new ArrayList<>(Math.min(count, ROOM)); // it may announce more than it holds
        for (int i = 0; i < count; i++) items.add(get(in, depth + 1));
        return items;
    }

    private static Map<String, Object> map(ByteBuffer in, int count, int depth) {
        if (count < 0 || count > in.remaining()) throw new IllegalArgumentException("too long");
        Map<String, Object> items = new LinkedHashMap<>();
        for (int i = 0; i < count; i++) items.put(String.valueOf(get(in, depth + 1)), get(in, depth + 1));
        return items;
    }
}
