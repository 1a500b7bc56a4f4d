package main

import (
	"context"
	"fmt"
	"log"

	"gossipq"
)

func main() {
	mq, err := gossipq.Open() // $GOSSIPQ_SERVER, or tcp://127.0.0.1:7700
	if err != nil {
		log.Fatal(err)
	}
	defer mq.Close()
	stored, err := mq.Publish(context.Background(), "orders", gossipq.Record{Value: []byte("one coffee"), Key: []byte("ada")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored at offset", stored[0].Offset)
}
