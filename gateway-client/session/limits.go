package session

import "time"

// Limits of the agent half. Those of single messages are in package link, which both halves share.
const (
	// ProtoMin and ProtoMax are the protocol versions that this agent speaks.
	ProtoMin, ProtoMax = 1, 1
	// WelcomeTimeout bounds dialling, Hello and Welcome together.
	WelcomeTimeout = 45 * time.Second
	// BackoffMin and BackoffMax bound the wait before the next dial; half of it is random.
	BackoffMin, BackoffMax = 500 * time.Millisecond, 30 * time.Second
	// MaxPushback bounds the wait that a gateway can ask for (grpc-retry-pushback-ms, Drain).
	MaxPushback = 2 * time.Minute
	// DefaultHeartbeat is used when Welcome says none; MaxHeartbeat bounds what it may say (SEC-03).
	DefaultHeartbeat, MaxHeartbeat = 15 * time.Second, 25 * time.Second
	// SilentHeartbeats is how many heartbeats in a row may go unanswered before the session ends.
	SilentHeartbeats = 3
	// InventoryEvery is how often a heartbeat carries the inventory's digests.
	InventoryEvery = 10
	// ResendAfter is how long a result may stay without an ack before it is sent again in the same session.
	ResendAfter = 30 * time.Second
	// ProgressInterval is how often a command's progress is sent at most.
	ProgressInterval = time.Second
	// SecretTimeout is how long Call.Secret waits (agent protocol, "Secrets").
	SecretTimeout = 10 * time.Second
	// ClockSkew is how far in the future issued_at may be.
	ClockSkew = 5 * time.Minute
	// StopTimeout is how long Run waits for handlers after its context ended.
	StopTimeout = 10 * time.Second
	// ControlLane and BulkLane are how many commands of a lane run at once.
	ControlLane, BulkLane = 4, 1
	// MaxHeld bounds the commands that run or wait; more are rejected BUSY.
	MaxHeld = 64
	// MaxRejects bounds the rejections kept until acked; older ones are forgotten.
	MaxRejects = 256
	// MaxCommands bounds the journal's commands. Acked ones are forgotten once they have expired.
	MaxCommands = 4096
	// MaxWorkflows bounds the workflows whose generation is remembered; the one used longest ago goes first.
	MaxWorkflows = 4096
	// MaxEvents bounds the journal's events without ack; the oldest goes first.
	MaxEvents = 10_000
	// MaxEventBytes bounds one event.
	MaxEventBytes = 64 << 10
	// EventsPerBatch and BatchBytes bound one EventBatch.
	EventsPerBatch, BatchBytes = 256, 1 << 20
	// MaxLines bounds the log lines that wait for a session, LinesPerBatch those of one second, MaxLineBytes one of them.
	MaxLines, LinesPerBatch, MaxLineBytes = 512, 64, 1 << 10
	// MaxMessageBytes bounds CommandUpdate.message.
	MaxMessageBytes = 4 << 10
	// MaxWordBytes bounds ids and names inside frames.
	MaxWordBytes = 256
	// MaxSections bounds what Config.Inventory returns.
	MaxSections = 64
	// QueueFrames bounds the frames that wait for the gateway.
	QueueFrames = 64
	// MaxDeferral bounds the wait that one JoinDeferral can ask for.
	MaxDeferral = 5 * time.Minute
	// JournalTimeout bounds the wait for the journal's file lock.
	JournalTimeout = 5 * time.Second
)
