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
#include <gossipq.h>
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Version of this client.
const Version = "0.2.0"

const (
	pingEvery = time.Second
	slice     = 20 * time.Millisecond // that Next waits with the connection in its hands
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
	// ErrLost says that others have some of the records that were acked.
	ErrLost = errors.New("others have some of the records by now")
	// ErrClosed says that the client, or the subscription, is closed.
	ErrClosed = errors.New("this client is closed")
)

// Client of the nodes of one cluster.
type Client struct {
	mu   sync.Mutex
	c    *C.gq
	stop chan struct{}
	done sync.WaitGroup
}

// Open makes a client. One address is enough, others are tried when its node is gone; without any it is $GOSSIPQ_SERVER, or this
// host's node. Nothing is connected before the first question.
func Open(servers ...string) (*Client, error) {
	var text *C.char
	if len(servers) > 0 {
		text = C.CString(strings.Join(servers, ","))
		defer C.free(unsafe.Pointer(text))
	}
	client := &Client{stop: make(chan struct{})}
	if code := C.gq_open(&client.c, text); code != C.GQ_OK {
		return nil, &Error{Text: fmt.Sprintf("no address of a node: %s", strings.Join(servers, ","))}
	}
	client.done.Add(1)
	go client.ping()
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

// Close gives back what was not acked, and ends all subscriptions.
func (m *Client) Close() error {
	m.mu.Lock()
	if m.c == nil {
		m.mu.Unlock()
		return nil
	}
	close(m.stop)
	C.gq_close(m.c)
	m.c = nil
	m.mu.Unlock()
	m.done.Wait()
	return nil
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
	return &Error{Code: C.GoString(C.gq_error_code(m.c)), Text: C.GoString(C.gq_error(m.c))}
}

func left(ctx context.Context) C.int {
	deadline, ok := ctx.Deadline()
	if !ok {
		return -1
	}
	ms := time.Until(deadline).Milliseconds()
	if ms < 0 {
		ms = 0
	}
	if ms > math.MaxInt32 {
		return -1
	}
	return C.int(ms)
}

// do runs a call with the connection in its hands. When ctx ends before, it returns, and the call ends by itself.
func (m *Client) do(ctx context.Context, call func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.c == nil {
			ended <- ErrClosed
			return
		}
		ended <- call()
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
	Key     []byte // records of one key lie in one partition, in their order; empty: none
	ID      []byte // what is published again under the same id is stored once; empty: none
	Headers map[string][]byte
}

// Place of a record that is stored.
type Place struct {
	Partition int
	Offset    int64
	Duplicate bool // it had been stored before, under this id
}

// Publish returns when all records are on a majority of disks, or with the error of the first that is not.
func (m *Client) Publish(ctx context.Context, topic string, records ...Record) ([]Place, error) {
	var places []Place
	err := m.do(ctx, func() error {
		memory := &arena{}
		defer memory.free()
		count := C.size_t(len(records))
		rows := (*C.gq_record)(C.calloc(count+1, C.sizeof_gq_record))
		found := (*C.gq_place)(C.calloc(count+1, C.sizeof_gq_place))
		defer C.free(unsafe.Pointer(rows))
		defer C.free(unsafe.Pointer(found))
		for i, row := range unsafe.Slice(rows, len(records)) {
			row.value, row.value_size = memory.bytes(records[i].Value)
			row.key, row.key_size = memory.bytes(records[i].Key)
			row.id, row.id_size = memory.bytes(records[i].ID)
			row.headers, row.header_count = memory.headers(records[i].Headers)
			unsafe.Slice(rows, len(records))[i] = row
		}
		err := m.check(C.gq_publish(m.c, memory.text(topic), rows, count, nil, found, left(ctx)))
		for _, place := range unsafe.Slice(found, len(records)) {
			places = append(places, Place{int(place.partition), int64(place.offset), place.duplicate != 0})
		}
		return err
	})
	return places, err
}

// arena is memory of C: it may not keep pointers to Go's.
type arena struct{ taken []unsafe.Pointer }

func (a *arena) keep(at unsafe.Pointer) unsafe.Pointer {
	a.taken = append(a.taken, at)
	return at
}

func (a *arena) bytes(raw []byte) (unsafe.Pointer, C.size_t) {
	if len(raw) == 0 {
		return nil, 0
	}
	return a.keep(C.CBytes(raw)), C.size_t(len(raw))
}

func (a *arena) text(text string) *C.char { return (*C.char)(a.keep(unsafe.Pointer(C.CString(text)))) }

func (a *arena) headers(headers map[string][]byte) (*C.gq_header, C.size_t) {
	if len(headers) == 0 {
		return nil, 0
	}
	rows := (*C.gq_header)(a.keep(C.calloc(C.size_t(len(headers)), C.sizeof_gq_header)))
	i := 0
	for name, value := range headers {
		row := &unsafe.Slice(rows, len(headers))[i]
		row.name = a.text(name)
		row.value, row.value_size = a.bytes(value)
		i++
	}
	return rows, C.size_t(len(headers))
}

func (a *arena) free() {
	for _, each := range a.taken {
		C.free(each)
	}
}

// Message is a record that a group consumes.
type Message struct {
	Partition int
	Offset    int64
	Attempt   int // ordinal of this handing-over, from 1
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
	s      *C.gq_subscription
}

// Subscribe consumes a topic for a group, whose consumers share its records.
func (m *Client) Subscribe(ctx context.Context, topic, group string) (*Subscription, error) {
	s := &Subscription{client: m}
	err := m.do(ctx, func() error {
		memory := &arena{}
		defer memory.free()
		return m.check(C.gq_subscribe(m.c, memory.text(topic), memory.text(group), nil, &s.s))
	})
	if err != nil {
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
		message, err := s.next()
		if message != nil || err != nil {
			return message, err
		}
	}
}

func (s *Subscription) next() (*Message, error) {
	m := s.client
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil || s.s == nil {
		return nil, ErrClosed
	}
	var row C.gq_message
	code := C.gq_next(s.s, &row, C.int(slice.Milliseconds()))
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
		Headers:   make(map[string][]byte, int(row.header_count)),
		Route:     C.GoStringN(row.route, C.int(row.route_size)),
		Published: time.UnixMilli(int64(row.time_ms)),
		from:      s,
	}
	for i := C.size_t(0); i < row.header_count; i++ {
		var name *C.char
		var value unsafe.Pointer
		var nameSize, valueSize C.size_t
		if C.gq_header_at(&row, i, &name, &nameSize, &value, &valueSize) == C.GQ_OK {
			message.Headers[C.GoStringN(name, C.int(nameSize))] = C.GoBytes(value, C.int(valueSize))
		}
	}
	return message, nil
}

// Ack says that the record is done. It is sent with others; Flush waits until all are stored.
func (msg *Message) Ack() error {
	s := msg.from
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if s.client.c == nil || s.s == nil {
		return ErrClosed
	}
	return s.client.check(C.gq_ack(s.s, C.uint32_t(msg.Partition), C.int64_t(msg.Offset)))
}

// Nack says that it failed, for that reason: it comes again as the policy of the group says.
func (msg *Message) Nack(ctx context.Context, reason string) error {
	s := msg.from
	return s.client.do(ctx, func() error {
		memory := &arena{}
		defer memory.free()
		if s.s == nil {
			return ErrClosed
		}
		at := C.uint32_t(msg.Partition)
		return s.client.check(C.gq_nack(s.s, at, C.int64_t(msg.Offset), memory.text(reason), -1, left(ctx)))
	})
}

// Flush returns when all acks are stored; ErrLost: but for some whose records others have by now.
func (s *Subscription) Flush(ctx context.Context) error {
	return s.client.do(ctx, func() error {
		if s.s == nil {
			return ErrClosed
		}
		return s.client.check(C.gq_flush(s.s, left(ctx)))
	})
}

// Close flushes, and gives back what was not acked.
func (s *Subscription) Close() error {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	if s.client.c != nil && s.s != nil {
		C.gq_unsubscribe(s.s)
	}
	s.s = nil
	return nil
}
