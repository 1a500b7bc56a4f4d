package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"gossipq"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	mq, err := gossipq.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer mq.Close()
	orders, err := mq.Subscribe(ctx, "orders", "kitchen")
	for err == nil {
		var m *gossipq.Message
		if m, err = orders.Next(ctx); err == nil {
			fmt.Printf("%s: %s\n", m.Key, m.Value)
			err = m.Ack() // or m.Nack(ctx, "no milk"), to have it redelivered
		}
	}
}
