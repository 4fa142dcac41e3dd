package store

import (
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// Quota bounds the database file in bytes; beyond it etcd refuses writes until space is made.
const Quota = 2 << 30

// Space is what the store takes on disk, in bytes.
type Space struct {
	// File is the database file, Used what of it is in use: the difference comes back by defragmenting. Beyond Quota writes are refused.
	File, Used, Quota int64
	// Alarm is etcd's word for what is wrong with it, such as "NOSPACE"; empty while nothing is.
	Alarm string
}

// Space looks at the member's own file. It is zero once the store is closed.
func (e *Etcd) Space() Space {
	select {
	case <-e.closed:
		return Space{}
	default:
	}
	s := Space{File: e.server.Server.Backend().Size(), Used: e.server.Server.Backend().SizeInUse(), Quota: Quota}
	var alarms []string
	for _, a := range e.server.Server.Alarms() {
		if a.Alarm != etcdserverpb.AlarmType_NONE {
			alarms = append(alarms, a.Alarm.String())
		}
	}
	s.Alarm = strings.Join(alarms, ", ")
	return s
}
