package gossipq;

/** A node has refused something for good, or what it said cannot be. */
public final class GossipqException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private final String code;

    GossipqException(String code, String message, String hint) {
        super(code + ": " + message + (hint.isEmpty() ? "" : "; " + hint));
        this.code = code;
    }

    /** One of PROTOCOL.md section 2. */
    public String code() {
        return code;
    }
}
