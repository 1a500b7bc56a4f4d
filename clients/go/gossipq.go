// Package gossipq is a client of gossipq, a message broker. It stands on the C client (clients/c).
//
// A Client may be used by many goroutines; their calls go one after the other over its one connection. It shows the nodes that it
// is there as long as it is open, so a record stays yours however long you work on it.
package gossipq

/*
#cgo pkg-config: libzmq
#cgo CFLAGS: -I${SRCDIR}/../c
#cgo LDFLAGS: ${SRCDIR}/../c/build/libgossipq.a
#include <stdlib.h>
#include <string.h>
#include <gossipq.h>

static const char *take(const char **at, size_t *size) {
	unsigned int n;
	memcpy(&n, *at, sizeof n);
	const char *bytes = *at + sizeof n;
	*at = bytes + n;
	*size = n;
	return bytes;
}

// Posts records that lie in `flat` as sizes and bytes: what is C's is made here, in one call.
static int post(gq *c, const char *flat, size_t count, size_t header_count, gq_place *places, int timeout_ms) {
	gq_record *records = calloc(count + 1, sizeof *records);
	gq_header *headers = calloc(header_count + 1, sizeof *headers), *header = headers;
	int code = GQ_MEMORY;
	size_t size, delay_size;
	if (records && headers) {
		const char *at = flat, *topic = take(&at, &size), *route = take(&at, &size);
		gq_how how = {.route = route, .flow = take(&at, &size)};
		memcpy(&how.priority, take(&at, &size), sizeof how.priority);
		how.has_priority = how.priority >= 0;
		memcpy(&how.delay_ms, take(&at, &delay_size), sizeof how.delay_ms);
		for (gq_record *r = records; r < records + count; r++) {
			r->value = take(&at, &r->value_size);
			r->key = take(&at, &r->key_size);
			r->id = take(&at, &r->id_size);
			size_t mine;
			memcpy(&mine, take(&at, &size), sizeof mine);
			r->headers = header;
			r->header_count = mine;
			for (; mine--; header++) {
				header->name = take(&at, &size);
				header->value = take(&at, &header->value_size);
			}
		}
		code = gq_post(c, topic, records, count, &how, places, timeout_ms);
	}
	free(records);
	free(headers);
	return code;
}
*/
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Version of this client.
const Version = "0.2.0"

const (
	pingEvery = time.Second
	slice     = 20 * time.Millisecond // Next holds the connection for this time while it waits
	hold      = 1500                  // milliseconds that another call holds it in its first turn: longer than the pause after a refusal
	turns     = 4                     // a later turn is this many times longer, because the answer may be slow
	pause     = 500 * time.Microsecond
	lone      = time.Millisecond       // time to wait for a lone caller's record while holding the connection
	crowded   = 100 * time.Millisecond // after another call, Next leaves the connection to others for this time, and only polls
	slabRows  = 4096
	closing   = 2000 // milliseconds that the acks of a subscription may take while it is closed
)

// Error is what a node refused, or what the client could not do.
type Error struct {
	// Code of PROTOCOL.md section 2; "" if no node said it.
	Code string
	Text string
}

func (e *Error) Error() string {
	if e.Code == "" {
		return e.Text
	}
	return e.Code + ": " + e.Text
}

var (
	// ErrNotConfirmed says that no answer came in time: the records may be stored.
	ErrNotConfirmed = errors.New("no answer came in time: it may be stored")
	// ErrLost says that others have the record that was nacked, or some of those that were acked; see LostError.
	ErrLost = errors.New("others have some of the records by now")
	// ErrClosed says that the client, or the subscription, is closed.
	ErrClosed = errors.New("this client is closed")
)

// LostError is the ErrLost of acks.
type LostError struct {
	Topic   string
	Records []Place // that others have by now, since their leases had ended
}

func (e *LostError) Error() string {
	const shown = 10
	var text strings.Builder
	text.WriteString("others have these acked records by now:")
	for i, each := range e.Records {
		if i == shown {
			fmt.Fprintf(&text, " and %d more", len(e.Records)-shown)
			break
		}
		fmt.Fprintf(&text, " %s/%d/%d", e.Topic, each.Partition, each.Offset)
	}
	return text.String()
}

// Is says that it is an ErrLost.
func (e *LostError) Is(other error) bool { return other == ErrLost }

// Client of the nodes of one cluster.
type Client struct {
	mu      sync.Mutex
	used    atomic.Int64 // when another call than Next had the connection last, in nanoseconds
	c       *C.gq
	pending []*Pending
	slab    *slab
	posted  chan struct{}
	stop    chan struct{}
	done    sync.WaitGroup
}

// Options of a client. All may be left out.
type Options struct {
	Servers     []string // one address is enough; others are tried when its node is down. Default: $GOSSIPQ_SERVER, or this host's node
	Credentials string   // file with a token, for a closed cluster. Default: Token, or the file of $GOSSIPQ_CREDENTIALS
	Token       string   // gq_ and 64 hexadecimal digits
	Insecure    bool     // the token may leave this machine in the clear
	Door        string   // key of the nodes, door_ and 64 hexadecimal digits: what is said is encrypted, at 100 above each port
	Forward     bool     // everything by the servers that are named, nothing straight to the leaders
}

// Open makes a client. Nothing is connected before the first question.
func Open(servers ...string) (*Client, error) { return OpenWith(Options{Servers: servers}) }

// whole refuses texts with a zero in them: C would take what is before it for all.
func whole(texts ...string) error {
	for _, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return &Error{Text: fmt.Sprintf("%q holds a zero byte", text)}
		}
	}
	return nil
}

// OpenWith makes a client with more to say.
func OpenWith(o Options) (*Client, error) {
	if err := whole(append([]string{o.Credentials, o.Token, o.Door}, o.Servers...)...); err != nil {
		return nil, err
	}
	memory := &arena{}
	defer memory.free()
	how := C.gq_connection{}
	for _, each := range []struct {
		to   **C.char
		text string
	}{{&how.servers, strings.Join(o.Servers, ",")}, {&how.credentials, o.Credentials}, {&how.token, o.Token}, {&how.door, o.Door}} {
		if each.text != "" {
			*each.to = memory.text(each.text)
		}
	}
	if o.Insecure {
		how.insecure = 1
	}
	if o.Forward {
		how.forward = 1
	}
	client := &Client{stop: make(chan struct{}), posted: make(chan struct{}, 1)}
	if code := C.gq_open_with(&client.c, &how); code != C.GQ_OK {
		return nil, &Error{Text: fmt.Sprintf("no address of a node, or no token that may be shown there: %s", strings.Join(o.Servers, ","))}
	}
	client.done.Add(2)
	go client.ping()
	go client.drive()
	return client, nil
}

func (m *Client) ping() {
	defer m.done.Done()
	ticks := time.NewTicker(pingEvery)
	defer ticks.Stop()
	for {
		select {
		case <-m.stop:
			return
		case <-ticks.C:
			m.mu.Lock()
			if m.c != nil {
				C.gq_ping(m.c)
			}
			m.mu.Unlock()
		}
	}
}

// Close ends all subscriptions and gives back the records that were not acked. It returns ErrLost if another consumer has a record that was
// acked since the last Flush. It returns ErrNotConfirmed if acks or posted records had no answer within 2 s.
func (m *Client) Close() error {
	m.mu.Lock()
	if m.c == nil {
		m.mu.Unlock()
		return nil
	}
	close(m.stop)
	var err error
	switch code := C.gq_close(m.c); code {
	case C.GQ_OK, C.GQ_REFUSED: // a refusal is told by the Pending, or by Next
	case C.GQ_TIMEOUT, C.GQ_NOT_CONFIRMED:
		err = ErrNotConfirmed
	case C.GQ_LOST:
		err = ErrLost
	default:
		err = &Error{Text: fmt.Sprintf("the client was not closed in order: code %d", int(code))}
	}
	m.c = nil
	m.settle()
	if m.slab != nil {
		m.slab.full = true
		m.slab.release(0)
	}
	m.mu.Unlock()
	m.done.Wait()
	return err
}

func (m *Client) check(code C.int) error {
	switch code {
	case C.GQ_OK:
		return nil
	case C.GQ_TIMEOUT:
		return context.DeadlineExceeded
	case C.GQ_NOT_CONFIRMED:
		return ErrNotConfirmed
	case C.GQ_LOST:
		return ErrLost
	}
	if m.c == nil {
		return &Error{Text: "it was refused while the client was closed"}
	}
	return &Error{Code: C.GoString(C.gq_error_code(m.c)), Text: C.GoString(C.gq_error(m.c))}
}

// lock takes the connection, for another call than Next.
func (m *Client) lock() {
	m.used.Store(time.Now().UnixNano())
	m.mu.Lock()
}

// left is how long a call may have the connection in its hands, in its first, second .. turn.
func left(ctx context.Context, turn int64) C.int {
	if turn > turns {
		turn = turns
	}
	most := turn * hold
	deadline, ok := ctx.Deadline()
	if !ok {
		return C.int(most)
	}
	ms := time.Until(deadline).Milliseconds()
	if ms < 0 {
		ms = 0
	}
	if ms > most {
		ms = most
	}
	return C.int(ms)
}

// turn runs a call with the connection in its hands, for as long as one may have it in its first, second .. turn.
func (m *Client) turn(ctx context.Context, number int64, call func(C.int) error) error {
	m.lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return call(left(ctx, number))
}

// do runs a call turn by turn, until it has an answer. When ctx ends before, it returns, and the call ends with its turn.
func (m *Client) do(ctx context.Context, call func(C.int) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		err := m.turn(ctx, 1, call)
		for turn := int64(2); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; turn++ {
			err = m.turn(ctx, turn, call)
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		if _, timed := ctx.Deadline(); timed { // the call knows of it, and says more
			select {
			case err := <-ended:
				return err
			case <-time.After(pingEvery):
			}
		}
		return ctx.Err()
	}
}

// Record to be published.
type Record struct {
	Value   []byte
	Key     []byte // records of one key are in one partition, in order; empty: the record has no key
	ID      []byte // a record that is published again under the same id is stored once; empty: the record has no id
	Headers map[string][]byte
}

// Place of a record that is stored.
type Place struct {
	Partition int
	Offset    int64
	Duplicate bool // it had been stored before, under this id
}

// How records travel. All may be left out.
type How struct {
	Route string        // words separated by dots, for consumers that take only some
	Delay time.Duration // until consumers get them
	// Whose records they are, such as a customer: up to 64 bytes. Groups of order "fair" serve flows in turn. Without a key it chooses the
	// partition.
	Flow     string
	Priority *int // 0 to 9; nil: 5. Groups of order "priority" or "fair" deliver the higher one first
}

// Pending are records that were posted.
type Pending struct {
	client *Client
	slab   *slab
	first  int
	places []C.gq_place
	found  []Place
	err    error
	done   chan struct{}
}

// slab is memory of C for the outcomes of records.
type slab struct {
	rows *C.gq_place
	used int
	live int
	full bool
}

func (m *Client) rows(count int) (*slab, []C.gq_place) {
	if count > slabRows {
		made := &slab{rows: (*C.gq_place)(C.calloc(C.size_t(count), C.sizeof_gq_place)), live: 1, full: true}
		return made, unsafe.Slice(made.rows, count)
	}
	if m.slab == nil || m.slab.used+count > slabRows {
		if m.slab != nil {
			m.slab.full = true
			m.slab.release(0)
		}
		m.slab = &slab{rows: (*C.gq_place)(C.calloc(slabRows, C.sizeof_gq_place))}
	}
	from := m.slab.used
	m.slab.used += count
	m.slab.live++
	return m.slab, unsafe.Slice(m.slab.rows, slabRows)[from : from+count]
}

func (s *slab) release(users int) {
	s.live -= users
	if s.full && s.live == 0 {
		C.free(unsafe.Pointer(s.rows))
		s.rows = nil
	}
}

// Publish returns when all records are on a majority of disks, or with the error of the first that is not.
func (m *Client) Publish(ctx context.Context, topic string, records ...Record) ([]Place, error) {
	return m.PublishWith(ctx, topic, How{}, records...)
}

// PublishWith is Publish with more to say.
func (m *Client) PublishWith(ctx context.Context, topic string, how How, records ...Record) ([]Place, error) {
	var pending *Pending
	err := m.do(ctx, func(ms C.int) (err error) {
		pending, err = m.post(topic, how, ms, records)
		return err
	})
	if err != nil {
		return nil, err
	}
	return pending.Wait(ctx)
}

// Post is Publish without waiting. Records that are posted one by one are packed together. It waits for room when 24 MiB are without an
// outcome.
func (m *Client) Post(topic string, records ...Record) (*Pending, error) {
	for turn := int64(1); ; turn++ {
		m.lock()
		if m.c == nil {
			m.mu.Unlock()
			return nil, ErrClosed
		}
		p, err := m.post(topic, How{}, left(context.Background(), turn), records)
		m.mu.Unlock()
		if !errors.Is(err, context.DeadlineExceeded) {
			return p, err
		}
	}
}

func (m *Client) post(topic string, how How, timeout C.int, records []Record) (*Pending, error) {
	if err := whole(topic, how.Route, how.Flow); err != nil {
		return nil, err
	}
	for i := range records {
		for name := range records[i].Headers {
			if err := whole(name); err != nil {
				return nil, err
			}
		}
	}
	flat, headers := flatten(topic, how, records)
	p := &Pending{client: m, done: make(chan struct{})}
	p.slab, p.places = m.rows(len(records))
	var places *C.gq_place
	if len(records) > 0 {
		places = &p.places[0]
	}
	code := C.post(m.c, (*C.char)(unsafe.Pointer(&flat[0])), C.size_t(len(records)), C.size_t(headers), places, timeout)
	if err := m.check(code); err != nil {
		p.err = err
		if code != C.GQ_REFUSED || len(records) == 1 { // else some of them may be on their way
			for i := range p.places {
				if p.places[i].code == C.GQ_PENDING {
					m.pending = append(m.pending, p)
					return nil, err
				}
			}
			p.slab.release(1)
			return nil, err
		}
	}
	m.pending = append(m.pending, p)
	select {
	case m.posted <- struct{}{}:
	default:
	}
	return p, nil
}

// flatten writes records as sizes and bytes, texts with a zero behind them; and how many headers there are.
func flatten(topic string, how How, records []Record) ([]byte, int) {
	size, headers := len(topic)+len(how.Route)+len(how.Flow)+64, 0
	for i := range records {
		r := &records[i]
		size += len(r.Value) + len(r.Key) + len(r.ID) + 24
		headers += len(r.Headers)
		for name, value := range r.Headers {
			size += len(name) + len(value) + 9
		}
	}
	out := make([]byte, 0, size)
	put := func(raw []byte) {
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(raw))), raw...)
	}
	number := func(value uint64) {
		out = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(out, 8), value)
	}
	text := func(text string) {
		out = append(append(binary.LittleEndian.AppendUint32(out, uint32(len(text)+1)), text...), 0)
	}
	text(topic)
	text(how.Route)
	text(how.Flow)
	priority := -1
	if how.Priority != nil {
		priority = *how.Priority
		if priority < 0 {
			priority = math.MaxInt32 // which is refused
		}
	}
	number(uint64(priority))
	number(uint64(how.Delay.Milliseconds()))
	for i := range records {
		r := &records[i]
		put(r.Value)
		put(r.Key)
		put(r.ID)
		number(uint64(len(r.Headers)))
		for name, value := range r.Headers {
			text(name)
			put(value)
		}
	}
	return out, headers
}

// Wait returns when all of the records are stored, or with the error of the first that is not. ErrNotConfirmed: ctx ended before.
func (p *Pending) Wait(ctx context.Context) ([]Place, error) {
	select {
	case <-p.done:
		return p.found, p.err
	default:
	}
	select {
	case <-p.done:
		return p.found, p.err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, ErrNotConfirmed
		}
		return nil, ctx.Err()
	}
}

// FlushAll returns when all that was posted has an outcome.
func (m *Client) FlushAll(ctx context.Context) error {
	m.mu.Lock()
	last := append([]*Pending(nil), m.pending...)
	m.mu.Unlock()
	for _, each := range last {
		if _, err := each.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// drive sends what was posted, and tells who waits.
func (m *Client) drive() {
	defer m.done.Done()
	for {
		select {
		case <-m.stop:
			return
		case <-m.posted:
		}
		for more, waited := m.driven(); more; more, waited = m.driven() {
			if !waited {
				time.Sleep(pause)
			}
		}
	}
}

// driven returns whether a record still waits for its outcome, and whether driven waited for it. It waits for a lone caller: a sleep lasts for a
// millisecond at least, and the answer comes earlier. For several callers it does not keep the connection, so that their records are sent
// together.
func (m *Client) driven() (more, waited bool) {
	m.lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return false, false
	}
	waited = len(m.pending) == 1
	if waited {
		C.gq_wait(m.c, C.int(lone.Milliseconds()))
	} else {
		C.gq_wait(m.c, 0)
	}
	m.settle()
	return len(m.pending) > 0, waited
}

// settle ends what has an outcome.
func (m *Client) settle() {
	kept := m.pending[:0]
	for _, p := range m.pending {
		if !p.settled() {
			kept = append(kept, p)
		}
	}
	for i := len(kept); i < len(m.pending); i++ {
		m.pending[i] = nil
	}
	m.pending = kept
}

func (p *Pending) settled() bool {
	for i := len(p.places) - 1; i >= 0; i-- {
		if p.places[i].code == C.GQ_PENDING {
			return false
		}
	}
	p.found = make([]Place, len(p.places))
	for i, place := range p.places {
		p.found[i] = Place{int(place.partition), int64(place.offset), place.duplicate != 0}
		if p.err == nil && place.code != C.GQ_OK {
			p.err = p.client.check(place.code)
		}
	}
	p.slab.release(1)
	p.places = nil
	close(p.done)
	return true
}

// arena is memory of C: it may not keep pointers to Go's.
type arena struct{ taken []unsafe.Pointer }

func (a *arena) keep(at unsafe.Pointer) unsafe.Pointer {
	a.taken = append(a.taken, at)
	return at
}

func (a *arena) text(text string) *C.char { return (*C.char)(a.keep(unsafe.Pointer(C.CString(text)))) }

func (a *arena) free() {
	for _, each := range a.taken {
		C.free(each)
	}
}

// Message is a record that a group consumes.
type Message struct {
	Partition int
	Offset    int64
	Attempt   int // number of started attempts, this one included: 1 for the first
	Value     []byte
	Key       []byte
	ID        []byte
	Headers   map[string][]byte
	Route     string
	Published time.Time

	from *Subscription
}

// Subscription of a group.
type Subscription struct {
	client *Client
	topic  string
	s      *C.gq_subscription
	over   bool
}

// Subscribe consumes a topic for a group, whose consumers share its records.
func (m *Client) Subscribe(ctx context.Context, topic, group string) (*Subscription, error) {
	if err := whole(topic, group); err != nil {
		return nil, err
	}
	s := &Subscription{client: m, topic: topic}
	err := m.do(ctx, func(ms C.int) error {
		memory := &arena{}
		defer memory.free()
		if s.over {
			return ErrClosed
		}
		options := C.gq_options{timeout_ms: ms + 1} // 0 is for ever
		return m.check(C.gq_subscribe(m.c, memory.text(topic), memory.text(group), &options, &s.s))
	})
	if err != nil {
		go s.Close() // it may still be subscribed, and would take records
		return nil, err
	}
	return s, nil
}

// Next is the next record. It waits for one until ctx ends.
func (s *Subscription) Next(ctx context.Context) (*Message, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		wait := slice
		if time.Since(time.Unix(0, s.client.used.Load())) < crowded {
			wait = 0
		}
		message, err := s.next(wait)
		if message != nil || err != nil {
			return message, err
		}
		if wait == 0 {
			time.Sleep(pause)
		}
	}
}

func (s *Subscription) next(wait time.Duration) (*Message, error) {
	m := s.client
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil || s.s == nil {
		return nil, ErrClosed
	}
	var row C.gq_message
	code := C.gq_next(s.s, &row, C.int(wait.Milliseconds()))
	if code == C.GQ_TIMEOUT {
		return nil, nil
	}
	if err := m.check(code); err != nil {
		return nil, err
	}
	message := &Message{
		Partition: int(row.partition),
		Offset:    int64(row.offset),
		Attempt:   int(row.attempt),
		Value:     C.GoBytes(row.value, C.int(row.value_size)),
		Key:       C.GoBytes(row.key, C.int(row.key_size)),
		ID:        C.GoBytes(row.id, C.int(row.id_size)),
		Headers:   make(map[string][]byte),
		Route:     C.GoStringN(row.route, C.int(row.route_size)),
		Published: time.UnixMilli(int64(row.time_ms)),
		from:      s,
	}
	for ; row.header_count > 0; row.header_count-- {
		var name *C.char
		var value unsafe.Pointer
		var nameSize, valueSize C.size_t
		if C.gq_header_at(&row, 0, &name, &nameSize, &value, &valueSize) != C.GQ_OK {
			break
		}
		message.Headers[C.GoStringN(name, C.int(nameSize))] = C.GoBytes(value, C.int(valueSize))
		rest := unsafe.Add(value, valueSize) // the next one is the first one then: to count up to each takes long for many
		row.headers_size -= C.size_t(uintptr(rest) - uintptr(row.headers))
		row.headers = rest
	}
	return message, nil
}

// Ack says that the record is done. The ack leaves within milliseconds, perhaps with others; without a connection it leaves when there
// is one again. Flush says whether it is stored.
func (msg *Message) Ack() error {
	s := msg.from
	if !s.client.mu.TryLock() {
		s.client.lock()
	}
	defer s.client.mu.Unlock()
	if s.client.c == nil || s.s == nil {
		return ErrClosed
	}
	return s.client.check(C.gq_ack(s.s, C.uint32_t(msg.Partition), C.int64_t(msg.Offset)))
}

// Nack says that the record failed, for that reason: it is redelivered as the policy of the group says. ErrLost: others have the record by
// now, so this failure does not count.
func (msg *Message) Nack(ctx context.Context, reason string) error {
	s := msg.from
	reason = strings.ReplaceAll(reason, "\x00", "\uFFFD") // else it would end there
	return s.client.do(ctx, func(ms C.int) error {
		memory := &arena{}
		defer memory.free()
		if s.s == nil {
			return ErrClosed
		}
		at := C.uint32_t(msg.Partition)
		return s.client.check(C.gq_nack(s.s, at, C.int64_t(msg.Offset), memory.text(reason), -1, ms))
	})
}

// Release gives the record back: it is redelivered at once, to any consumer. That is not a failure. ErrLost: others have it by now.
func (msg *Message) Release(ctx context.Context) error {
	s := msg.from
	return s.client.do(ctx, func(ms C.int) error {
		if s.s == nil {
			return ErrClosed
		}
		return s.client.check(C.gq_release(s.s, C.uint32_t(msg.Partition), C.int64_t(msg.Offset), ms))
	})
}

// Flush returns when all acks are stored. A *LostError names the records, acked since the last Flush, that others have by now; all other
// acks are stored then.
func (s *Subscription) Flush(ctx context.Context) error {
	return s.client.do(ctx, s.flush)
}

func (s *Subscription) flush(ms C.int) error {
	if s.s == nil {
		return ErrClosed
	}
	code := C.gq_flush(s.s, ms)
	count := C.gq_lost(s.s, nil, 0)
	if code != C.GQ_LOST || count == 0 {
		return s.client.check(code)
	}
	places := make([]C.gq_place, count)
	C.gq_lost(s.s, &places[0], count)
	lost := &LostError{Topic: s.topic}
	for _, each := range places {
		lost.Records = append(lost.Records, Place{Partition: int(each.partition), Offset: int64(each.offset)})
	}
	return lost
}

// Close flushes, as Flush says but for 2 s at most, and gives back the records that were not acked.
func (s *Subscription) Close() error {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	var err error
	if s.client.c != nil && s.s != nil {
		err = s.flush(closing)
		C.gq_unsubscribe(s.s)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = ErrNotConfirmed
	}
	s.s, s.over = nil, true
	return err
}
