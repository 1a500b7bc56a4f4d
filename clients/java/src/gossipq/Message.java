package gossipq;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** A record that a group consumes. */
public final class Message {
    public final int partition;
    public final long offset;
    /** Attempts that began so far, with this one: 1 for the first. */
    public final int attempt;
    public final byte[] value;
    /** Empty: none. */
    public final byte[] key;
    public final Map<String, byte[]> headers = new LinkedHashMap<>();
    public final byte[] id;
    public final String route;
    /** When it was published, unix milliseconds. */
    public final long timeMs;

    Message(List<?> row) {
        partition = (int) ((Long) row.get(0) & 0xffff);
        offset = (Long) row.get(1);
        attempt = ((Long) row.get(2)).intValue();
        value = (byte[]) row.get(3);
        key = (byte[]) row.get(4);
        ((Map<?, ?>) row.get(5)).forEach((name, raw) ->
            headers.put((String) name, raw instanceof byte[] ? (byte[]) raw : ((String) raw).getBytes(StandardCharsets.UTF_8)));
        id = (byte[]) row.get(6);
        route = (String) row.get(7);
        timeMs = (Long) row.get(8);
    }
}
