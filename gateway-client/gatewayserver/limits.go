package gatewayserver

import "time"

// Limits of the gateway half. Those of single messages are in package link, which both halves share.
const (
	// ProtoMin and ProtoMax are the protocol versions that this gateway speaks.
	ProtoMin, ProtoMax = 1, 1
	// HandshakesPerSecond and HandshakeBurst bound Join, Renew and Session openings, all agents together.
	HandshakesPerSecond, HandshakeBurst = 300, 1000
	// MaxPendingHellos bounds the streams that have not sent their Hello.
	MaxPendingHellos = 512
	// HelloTimeout is how long a stream may take to send it.
	HelloTimeout = 10 * time.Second
	// PushbackMillis is what a RESOURCE_EXHAUSTED refusal asks for in its grpc-retry-pushback-ms trailer.
	PushbackMillis = 2000
	// MaxSessions bounds the sessions of one gateway.
	MaxSessions = 10_000
	// StreamsPerConnection bounds the calls that one connection may have open.
	StreamsPerConnection = 16
	// QueueFrames bounds the frames that wait for one agent.
	QueueFrames = 64
	// HeartbeatInterval is what Welcome asks for; proxies cut after 55 s of silence (SEC-03).
	HeartbeatInterval = 15 * time.Second
	// SilenceLimit ends a session that sent no frame for so long (SEC-02: noticed within 60 s).
	SilenceLimit = 3 * HeartbeatInterval
	// MinPingInterval is how often an agent may ping; agents do it every link.PingInterval (SEC-01).
	MinPingInterval = 10 * time.Second
	// SupersedeWait is how long a new session waits for the older one's last call of Control.
	SupersedeWait = 10 * time.Second
	// SendTimeout bounds how long the gateway's own answers wait for room in the queue.
	SendTimeout = 30 * time.Second
	// FlushTimeout bounds how long an ending session waits for the frames that are queued already.
	FlushTimeout = time.Second
	// CallTimeout bounds the calls of Control and Services that outlive a stream.
	CallTimeout = 10 * time.Second
	// ControlCredits and BulkCredits tell the agent how many commands of a lane it may hold.
	ControlCredits, BulkCredits = 16, 4
	// MaxSecretRequests bounds one session's requests in flight.
	MaxSecretRequests = 8
	// MaxChain bounds the certificates that an agent may present.
	MaxChain = 4
	// MaxCSRBytes bounds JoinRequest.csr.
	MaxCSRBytes = 16 << 10
	// MaxEvidenceBytes bounds JoinRequest.evidence.
	MaxEvidenceBytes = 64 << 10
	// MaxWordBytes bounds ids and names inside frames.
	MaxWordBytes = 256
	// MaxEventsPerBatch bounds EventBatch.events.
	MaxEventsPerBatch = 256
	// MaxLogLines bounds LogBatch.lines.
	MaxLogLines = 256
	// MaxCapabilities bounds Hello.capabilities; MaxSections Hello.inventory_sha256.
	MaxCapabilities, MaxSections = 128, 64
	// MaxMACs bounds HardwareClaims.macs.
	MaxMACs = 64
)
